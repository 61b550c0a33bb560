"""Shapes of the parameters of real transformers, without building them."""

Shapes = dict[str, tuple[int, ...]]


def llama_20m() -> Shapes:
    """A llama of 20 million parameters: 8 layers of width 384, vocabulary 16384, tied
    embeddings.
    """
    width, inner, layers, vocabulary = 384, 1024, 8, 16384
    shapes: Shapes = {"embedding": (vocabulary, width), "norm": (width,)}
    for layer in range(layers):
        shapes |= {f"{layer}.{name}": (width, width) for name in ("q", "k", "v", "o")}
        shapes |= {f"{layer}.{name}": (inner, width) for name in ("gate", "up")}
        shapes |= {
            f"{layer}.down": (width, inner),
            f"{layer}.norm1": (width,),
            f"{layer}.norm2": (width,),
        }
    return shapes


def gpt2_124m() -> Shapes:
    """GPT-2 small: 124 million parameters, vocabulary 50257 (a prime times 29: it needs padding),
    biases.
    """
    width, layers = 768, 12
    shapes: Shapes = {
        "wte": (50257, width),
        "wpe": (1024, width),
        "ln_f.weight": (width,),
        "ln_f.bias": (width,),
    }
    for layer in range(layers):
        for name, shape in {
            "attn.qkv": (width, 3 * width),
            "attn.out": (width, width),
            "mlp.in": (width, 4 * width),
            "mlp.out": (4 * width, width),
        }.items():
            shapes |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": (shape[1],)}
        for name in ("ln_1", "ln_2"):
            shapes |= {f"{layer}.{name}.weight": (width,), f"{layer}.{name}.bias": (width,)}
    return shapes

"""Embedding and head of a sharded network. Each rank has its rows of both, a part of the
vocabulary, and computes with them for the tokens of all ranks: rows stay, tokens go round.

    embedding   tokens of all -> each rank: its rows, zeros for others' -> summed where a token is
    way back    changes of all -> each rank adds those of its rows

    head        hidden states of all -> each rank: logits of its rows, piece by piece -> to all, two
                numbers a token: their sum, and the one that is expected -> likelihoods
    way back    each rank adds the gradient of its rows; that of hidden states is summed where they
                are

So neither is ever whole, nor are logits, and what goes round is as wide as the model and not as its
vocabulary. What torch shards with the rest of the network: a parameter with other uses, a head that
is no plain matrix, one whose logits the model changes.
"""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from node.model.embedding import add_rows, is_plain
from node.model.head import add_back, left_out, pieces, plain_head
from node.model.training import TrainingModel
from node.ranks.exchange import Pool, TensorExchange


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of this rank."""

    exchange: TensorExchange
    first: int
    count: int
    """All but those that fill up the last rank's."""

    def places(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The row here of each of some tokens, and whether it has one; any row if it has none."""
        places = tokens - self.first
        here = (places >= 0) & (places < self.count)
        return places.where(here, 0), here


class SplitEmbedding(nn.Embedding):
    """An embedding of which a rank has its rows."""

    rows: _Rows

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        anchor = torch.empty(0, requires_grad=True, device="cpu")
        found: Tensor = _Lookup.apply(self, input, anchor)  # type: ignore[no-untyped-call]
        return found


class _Lookup(torch.autograd.Function):
    """The rows of this rank's tokens, as `node.model.embedding` makes them of a whole one."""

    @staticmethod
    def forward(ctx: Any, module: SplitEmbedding, tokens: Tensor, anchor: Tensor) -> Tensor:
        pool = Pool(module.rows.exchange, tokens.numel())
        every = pool.all(tokens.flatten())
        places, here = module.rows.places(every)
        found = pool.sums(embedding(places, module.weight) * here[:, None])
        if module.padding_idx is not None:  # its row is not trained as an embedding
            here = here & (every != module.padding_idx)
        ctx.module, ctx.pool = module, pool
        ctx.save_for_backward(places, here)
        return found.view(*tokens.shape, -1)

    @staticmethod
    def backward(ctx: Any, *changes: Tensor) -> tuple[None, None, None]:
        """changes: one tensor [..., width], the gradient of the rows."""
        places, here = ctx.saved_tensors
        change = ctx.pool.all(changes[0].flatten(0, -2))
        add_rows(ctx.module.weight, places, change * here[:, None])
        return None, None, None


class SplitHead(nn.Linear):
    """A head of which a rank has its rows; it is left out of the model's own pass."""

    rows: _Rows

    @torch.no_grad()
    def backward(self, hidden: Tensor, targets: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """As `node.model.head.backward_by_pieces`, with all ranks; `scale` is 0 on those without
        samples, and the same on all others.
        """
        own = targets.numel() if scale else 0
        pool = Pool(self.rows.exchange, own, scale)
        states, expected = pool.all(hidden.flatten(0, -2)), pool.all(targets.flatten())
        change, nats, done = torch.empty_like(states), list[Tensor](), 0
        for each in pieces(states, self, expected):
            logits_change, found = self._unlikely(*each)
            place = change[done : done + len(found)]
            add_back(logits_change, each, self, place, pool.number)
            nats.append(found)
            done += len(found)
            del logits_change  # before the next piece's is made
        back = torch.zeros_like(hidden)
        back.view(-1, hidden.shape[-1])[:own] = pool.sums(change)
        return pool.own(torch.cat(nats)).sum(), back

    @torch.no_grad()
    def nats(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """As `node.model.head.nats_by_pieces`, with all ranks."""
        pool = Pool(self.rows.exchange, targets.numel())
        states, expected = pool.all(hidden.flatten(0, -2)), pool.all(targets.flatten())
        nats = [self._unlikely(*each)[1] for each in pieces(states, self, expected)]
        return pool.own(torch.cat(nats)).sum()

    def _unlikely(
        self, piece: Tensor, weight: Tensor, bias: Tensor | None, expected: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(Gradient of the logits of this rank's rows [tokens, rows], cross-entropy [tokens])."""
        exact = torch.promote_types(piece.dtype, torch.float32)
        logits = linear(piece, weight, bias).to(exact)
        logits[:, self.rows.count :] = -torch.inf
        places, here = self.rows.places(expected)
        said = logits.gather(1, places).where(here, -torch.inf)
        most = logits.amax(-1, keepdim=True).clamp_(min=torch.finfo(exact).min)
        own = torch.cat([most + logits.sub_(most).exp_().sum(-1, keepdim=True).log(), said], 1)
        every = own.new_empty((self.rows.exchange.ranks, *own.shape))
        self.rows.exchange.gather(every.flatten(0, 1), own)
        total, found = every[..., 0].logsumexp(0), every[..., 1].amax(0)
        # Likelihoods, less one at what is expected.
        logits.mul_((most - total[:, None]).exp()).scatter_add_(1, places, -here.to(exact))
        return logits, total - found


class SplitTraining(TrainingModel):
    """The network at work, whose head is split where it can be."""

    def _output(self, piece: Tensor) -> tuple[Any, nn.Linear | None]:
        head = self.model.get_output_embeddings()  # type: ignore[operator]
        if not isinstance(head, SplitHead):
            return super()._output(piece)
        with left_out(head):
            return self._forward(piece), head

    def _backward(
        self, hidden: Tensor, head: nn.Linear, targets: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        if isinstance(head, SplitHead):
            return head.backward(hidden, targets, scale)
        return super()._backward(hidden, head, targets, scale)

    def _nats_by_pieces(self, hidden: Tensor, head: nn.Linear, targets: Tensor) -> Tensor:
        if isinstance(head, SplitHead):
            return head.nats(hidden, targets)
        return super()._nats_by_pieces(hidden, head, targets)


def split_tables(model: nn.Module, exchange: TensorExchange) -> set[nn.Parameter]:
    """Have embedding and head of a model keep rows of this rank alone, without values. Returns
    their parameters, which torch is not to shard.
    """
    split = dict[int, nn.Parameter]()
    for table in _tables(model):
        size = len(table.weight)
        each = -(-size // exchange.ranks)
        first = exchange.rank * each
        for name, whole in list(table.named_parameters(recurse=False)):
            if id(whole) not in split:
                split[id(whole)] = nn.Parameter(whole.new_zeros((each, *whole.shape[1:])))
            setattr(table, name, split[id(whole)])
        table.__class__ = SplitHead if isinstance(table, nn.Linear) else SplitEmbedding
        table.rows = _Rows(exchange, first, min(max(size - first, 0), each))
        if isinstance(table, nn.Linear):
            table.out_features = each
    return set(split.values())


def _tables(model: nn.Module) -> list[Any]:
    """Embedding and head, where all their parameters are trained and have no other use."""
    found, head = list[nn.Module](), plain_head(model)
    with suppress(AttributeError, NotImplementedError):
        first: Any = model.get_input_embeddings()  # type: ignore[operator]
        found += [first] * is_plain(first)
    if head and _leaves_logits(model, head):
        found.append(head)
    found = [each for each in found if all(p.requires_grad for p in each.parameters())]
    uses = Counter(id(each) for _, each in model.named_parameters(remove_duplicate=False))
    uses.subtract(id(each) for table in found for each in table.parameters())
    return [table for table in found if not any(uses[id(each)] for each in table.parameters())]


@torch.no_grad()
def _leaves_logits(model: nn.Module, head: nn.Linear) -> bool:
    """Whether a model hands out what its head makes, as a pass over one token shows."""
    model.eval()
    try:
        with left_out(head) as untouched:
            return untouched(model(torch.zeros((1, 1), dtype=torch.int64), use_cache=False).logits)
    finally:
        model.train()

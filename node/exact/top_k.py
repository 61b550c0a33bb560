"""The k largest of each chunk, in two ways that a processor and an accelerator are fast at.

A row of 4096 magnitudes is cut into 256 groups of 16. Its k largest lie in the k groups with the
largest maxima: to find those groups first takes a fraction of the time of one top-k over the row.
"""

import numpy as np
import torch
from torch import Tensor

from protocol.limits import CHUNK_ENTRIES

_PLACE_BITS = CHUNK_ENTRIES.bit_length() - 1

_GROUP, _GROUPS = 16, CHUNK_ENTRIES // 16
"""Entries of a group, and groups of a row."""

_CANDIDATES_PER_KEPT = 2
"""Candidates per entry to keep up to which it is faster to order them; rarely are there 1.2."""


def largest(magnitudes: Tensor, top_k: int) -> Tensor:
    """int64 [n, k]: places of the k largest in each row of float32 [n, 4096], which is in the
    host's memory. In no order; any of equals; NaN is the largest.
    """
    if top_k < _GROUPS:
        places = largest_above_threshold(magnitudes, top_k)
        if places is not None:
            return places
    return largest_in_groups(magnitudes, top_k)


def largest_in_groups(magnitudes: Tensor, top_k: int) -> Tensor:
    """`largest` by a top-k of the groups' maxima and one inside those groups: on any device, and
    with any number of equal entries.
    """
    if top_k >= _GROUPS:
        return magnitudes.topk(top_k, dim=1, sorted=False).indices
    groups = magnitudes.view(-1, _GROUP, _GROUPS)  # a group is a column
    columns = groups.amax(1).topk(top_k, dim=1, sorted=False).indices  # [n, k]
    candidates = groups.gather(2, columns[:, None].expand(-1, _GROUP, -1)).flatten(1)  # [n, 16 * k]
    best = candidates.topk(top_k, dim=1, sorted=False).indices
    places: Tensor = best // top_k * _GROUPS + columns.gather(1, best % top_k)
    return places


def largest_above_threshold(magnitudes: Tensor, top_k: int) -> Tensor | None:
    """`largest` for k < 256 by ordering the few entries that reach the k-th largest maximum; None
    where too many entries are equal, as zeros often are: there the other way is faster.

    The k-th largest maximum is at most the k-th largest entry, and little more than k entries reach
    it. Each of those is one whole number, the bits of the magnitude above those of the place.
    """
    # The bits of magnitudes are ordered as these are, and numpy orders whole numbers faster.
    entries = magnitudes.view(torch.int32).numpy()
    peaks = magnitudes.view(-1, _GROUP, _GROUPS).amax(1).view(torch.int32).numpy()
    threshold = np.partition(peaks, -top_k, axis=1)[:, -top_k]
    reaching = np.flatnonzero(entries >= threshold[:, None])
    if reaching.size > _CANDIDATES_PER_KEPT * top_k * len(magnitudes):
        return None
    rows = reaching >> _PLACE_BITS
    counts = np.bincount(rows, minlength=len(magnitudes))
    slots = np.arange(reaching.size) - np.repeat(np.cumsum(counts) - counts, counts)
    keys = np.full((len(magnitudes), counts.max()), -1, np.int64)
    reached = entries.reshape(-1)[reaching].astype(np.int64)
    keys[rows, slots] = reached << _PLACE_BITS | reaching & CHUNK_ENTRIES - 1
    return torch.from_numpy(np.partition(keys, -top_k, axis=1)[:, -top_k:] & CHUNK_ENTRIES - 1)


def ascending(places: Tensor) -> Tensor:
    """Each row in ascending order, in the host's memory. numpy takes a tenth of torch's time for
    short rows of int16.
    """
    return torch.from_numpy(np.sort(places.numpy(), axis=1))

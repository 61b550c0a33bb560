"""The k largest of each chunk, by whichever way is the faster on a device."""

import numpy as np
import torch
from torch import Tensor

from node.demo.accelerator import is_accelerator
from protocol.limits import CHUNK_ENTRIES

_PLACE_BITS = CHUNK_ENTRIES.bit_length() - 1

_GROUP = 16
"""Entries of a group in `largest`."""

_CANDIDATES_PER_KEPT = 2
"""Candidates per entry to keep up to which ordering them is the faster way to the k largest; rarely are there 1.2."""


def largest(magnitudes: Tensor, top_k: int) -> Tensor:
    """int64 [n, k]: places of the k largest in each row of [n, 4096], in no order; any of equals.

    Cut into 256 groups of 16, a row has its k largest inside the k groups with the largest maxima: to look for those
    groups first takes a fraction of the time of one top-k over the row.
    """
    groups = magnitudes.view(len(magnitudes), _GROUP, -1)  # [n, 16, 256]: a group is a column
    if top_k >= groups.shape[2]:
        return magnitudes.topk(top_k, dim=1, sorted=False).indices
    peaks = groups.amax(1)
    places = None if is_accelerator(magnitudes.device) else _largest_above_peaks(magnitudes, peaks, top_k)
    return _largest_in_groups(groups, peaks, top_k) if places is None else places


def _largest_in_groups(groups: Tensor, peaks: Tensor, top_k: int) -> Tensor:
    """`largest` by a top-k of the groups' maxima, then one inside those groups: for any device and any ties."""
    columns = peaks.topk(top_k, dim=1, sorted=False).indices  # [n, k]
    candidates = groups.gather(2, columns[:, None].expand(-1, _GROUP, -1)).flatten(1)  # [n, 16 * k]
    best = candidates.topk(top_k, dim=1, sorted=False).indices
    places: Tensor = best // top_k * groups.shape[2] + columns.gather(1, best % top_k)
    return places


def _largest_above_peaks(magnitudes: Tensor, peaks: Tensor, top_k: int) -> Tensor | None:
    """`largest` on a CPU; None where so many entries are equal, as zeros often are, that the other way is faster.

    The k-th largest group maximum is at most the k-th largest entry, and few entries more than k reach it. Those are
    ordered by one whole number each, the magnitude's bits above the place.
    """
    bits = peaks.view(torch.int32).numpy()  # ordered as the magnitudes are, and numpy orders whole numbers faster
    threshold = np.partition(bits, -top_k, axis=1)[:, -top_k]
    entries = magnitudes.view(torch.int32).numpy()
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
    """Each row in ascending order. numpy takes a tenth of torch's time for short rows of int16."""
    if not is_accelerator(places.device):
        return torch.from_numpy(np.sort(places.numpy(), axis=1))
    return places.sort(dim=1).values

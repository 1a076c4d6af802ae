"""Sequences of different length to the replicas of a step, and to micro-batches under a cap of
tokens.

The result depends on the arguments alone, so all ranks get the same without asking each other. The
method is libcairn's (cairn_sequences_assign).
"""

from __future__ import annotations

import array
import hashlib
import math
import operator
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from . import _lib

SEQUENCES_MAX = 1000000
LINEAR = (0.0, 1.0, 0.0)


class Micro(NamedTuple):
    """A micro-batch of sequences.

    sequences: indices into the lengths, ascending. tokens: how many they have together. scale: what
    their mean loss per token is multiplied with, so that the gradient is the mean over all tokens
    of the step; 0 for a replica that got no sequence, and computes one of another replica so that
    the ranks' collectives match (tokens is 0, too). number: no other micro-batch of the step has
    it. work: what it costs, in tokens of mean cost.
    """

    sequences: Tuple[int, ...]
    tokens: int
    scale: float
    number: int
    work: int


def checked(lengths: Any, max_tokens: int) -> "array.array[int]":
    """The lengths as numbers of 64 bits. ValueError."""
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise ValueError(
            f"share.assign: max_tokens is {max_tokens!r}; it must be an integer of at least 1"
        )
    lengths = lengths.tolist() if hasattr(lengths, "tolist") else list(lengths)
    if not 1 <= len(lengths) <= SEQUENCES_MAX:
        raise ValueError(
            f"share.assign: there are {len(lengths)} lengths; give one for each sequence of the "
            f"step, from 1 to {SEQUENCES_MAX} of them"
        )
    try:
        tokens = array.array("Q", lengths)
        if 1 <= min(tokens) and max(tokens) <= max_tokens:
            return tokens
    except (OverflowError, TypeError):
        pass
    for index, length in enumerate(lengths):
        if not isinstance(length, int) or length < 1:
            raise ValueError(
                f"share.assign: sequence {index} has length {length!r}; it must be an integer of "
                "at least 1"
            )
        if length > max_tokens:
            raise ValueError(
                f"share.assign: sequence {index} has {length} tokens, and a micro-batch at most "
                f"{max_tokens} (max_tokens); cut or drop it, or raise max_tokens"
            )
    raise ValueError("share.assign: lengths must be integers")


def _checked_cost(cost: Sequence[float], max_tokens: int) -> Tuple[float, float, float]:
    try:
        square, linear, constant = map(float, cost)
        most = (square * max_tokens * max_tokens + linear * max_tokens + constant) * SEQUENCES_MAX
        if min(square, linear, constant) >= 0 and 0 < most < math.inf:
            return square, linear, constant
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(
        f"share.assign: cost is {cost!r}; it must be three numbers of at least 0, (a, b, c) for "
        "a s^2 + b s + c, and not all of them 0"
    )


def cost_of(cost: Sequence[float], tokens: Sequence[int]) -> float:
    """Of sequences of so many tokens."""
    square, linear, constant = cost
    squares = sum(map(operator.mul, tokens, tokens)) if square else 0
    return square * squares + linear * sum(tokens) + constant * len(tokens)


def assign(
    tokens: "array.array[int]",
    shares: Sequence[int],
    rank: int,
    max_tokens: int,
    cost: Sequence[float],
) -> Tuple[List[Micro], bytes]:
    """(the micro-batches of `rank`, a digest of what all ranks must have alike) for checked
    lengths. ValueError."""
    cost = _checked_cost(cost, max_tokens)
    try:
        replica_of, number_of = _lib.assign_sequences(tokens, shares, max_tokens, cost)
    except _lib.CairnError as error:
        raise ValueError(
            f"share.assign: {len(tokens)} sequences for {len(shares)} replicas: {error}; a replica "
            "can have at most 65,536 sequences"
        ) from error
    batches: Dict[int, List[int]] = {}
    for index, replica in enumerate(replica_of):
        if replica == rank:
            batches.setdefault(number_of[index], []).append(index)
    all_tokens, all_cost = sum(tokens), cost_of(cost, tokens)
    micros = []
    for _, members in sorted(batches.items()):
        held = [tokens[index] for index in members]
        scale = len(shares) * sum(held) / all_tokens
        work = max(1, round(cost_of(cost, held) / all_cost * all_tokens))
        micros.append(Micro(tuple(members), sum(held), scale, members[0], work))
    if not micros:
        least = min(tokens)
        work = max(1, round(cost_of(cost, [least]) / all_cost * all_tokens))
        micros.append(Micro((tokens.index(least),), 0, 0.0, len(tokens) + rank, work))
    digest = hashlib.blake2b(tokens.tobytes(), digest_size=8)
    digest.update(replica_of.tobytes() + number_of.tobytes())
    return micros, digest.digest()

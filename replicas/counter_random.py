"""Random numbers that follow from (seed, choice, position) alone, so a replay draws the same."""

import numpy as np
import numpy.typing as npt

UInt64Array = npt.NDArray[np.uint64]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_SEED_BITS = 1 << 64


def uniforms(
    seeds: npt.ArrayLike, choices: npt.ArrayLike, positions: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each (seed, choice, position), all [S]; 53 random bits each.

    Seeds may be any Python integers; they count modulo 2**64. Three rounds of the SplitMix64
    finaliser (Steele, Lea, Flood 2014), one for each part of the counter.
    """
    state = _mixed(_as_uint64(seeds))
    state = _mixed(state ^ _mixed(_as_uint64(choices)))
    state = _mixed(state + _as_uint64(positions) * _STEP)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _as_uint64(values: npt.ArrayLike) -> UInt64Array:
    return np.array([int(value) % _SEED_BITS for value in np.atleast_1d(values)], dtype=np.uint64)


def _mixed(state: UInt64Array) -> UInt64Array:
    state = state + _STEP
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    return state ^ (state >> np.uint64(31))

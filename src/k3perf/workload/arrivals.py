"""Arrival processes to send times in nanoseconds from the round's start. Pure and
seeded.

Sources: a Poisson process has independent exponential gaps; the ramp maps unit-rate
arrivals through the inverse of the integrated rate (time change of a Poisson process,
e.g. Ross, *Introduction to Probability Models*, section 5.4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k3perf.config.workload_spec import (
    AllAtOnce,
    ClosedLoop,
    Constant,
    Gamma,
    OpenLoop,
    Poisson,
    Ramp,
)
from k3perf.errors import UsageError
from k3perf.units import NS_PER_S
from k3perf.workload.draws import uniforms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Random send times are rounded to this step so that the last bit of a platform's
# logarithm cannot change a plan's digest.
RANDOM_STEP_NS = 1_000

SyntheticArrival = AllAtOnce | ClosedLoop | Constant | Poisson | Gamma | Ramp


def send_offsets_ns(
    arrival: SyntheticArrival, *, seed: int, count: int, found_rate_per_s: float | None = None
) -> tuple[int | None, ...]:
    """``count`` send times, not decreasing; None for a closed loop, whose sends follow
    the replies.

    Raises UsageError when the rate is a share and ``found_rate_per_s``
    is None.
    """
    if isinstance(arrival, ClosedLoop):
        return (None,) * count
    if isinstance(arrival, AllAtOnce):
        return (0,) * count
    if isinstance(arrival, Constant):
        rate_per_s = arrival_rate_per_s(arrival, found_rate_per_s)
        return tuple(round(index * NS_PER_S / rate_per_s) for index in range(count))
    return _random_offsets_ns(arrival, uniforms(seed, "arrival", count), found_rate_per_s)


def arrival_rate_per_s(arrival: OpenLoop, found_rate_per_s: float | None) -> float:
    """The rate in requests per second: stated, or the stated share of the found
    rate.
    """
    if arrival.rate_per_s is not None:
        return arrival.rate_per_s
    assert arrival.found_rate_share_ratio is not None  # noqa: S101 - the model's validator holds this
    if found_rate_per_s is None:
        raise UsageError(
            f"the arrival rate is {arrival.found_rate_share_ratio:g} of the maximum sustainable"
            " rate, which is not known for this target; run `k3perf load find-rate` and record its"
            " result, or give rate_per_s"
        )
    return arrival.found_rate_share_ratio * found_rate_per_s


def _random_offsets_ns(
    arrival: Poisson | Gamma | Ramp, draws: NDArray[np.float64], found_rate_per_s: float | None
) -> tuple[int, ...]:
    import numpy as np

    if isinstance(arrival, Gamma):
        from scipy.special import gammaincinv

        gaps_s = gammaincinv(arrival.shape, draws) / (
            arrival.shape * arrival_rate_per_s(arrival, found_rate_per_s)
        )
        times_s = np.cumsum(gaps_s)
    elif isinstance(arrival, Poisson):
        times_s = np.cumsum(-np.log1p(-draws)) / arrival_rate_per_s(arrival, found_rate_per_s)
    else:
        times_s = _ramp_times_s(arrival, np.cumsum(-np.log1p(-draws)))
    return tuple(
        int(steps) * RANDOM_STEP_NS for steps in np.rint(times_s * (NS_PER_S / RANDOM_STEP_NS))
    )


def _ramp_times_s(arrival: Ramp, unit_times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solve ``start*t + (end - start)*t^2 / (2*duration) = unit_time``; past
    ``duration`` the rate stays at ``end``.
    """
    import numpy as np

    start, end, duration_s = arrival.start_rate_per_s, arrival.end_rate_per_s, arrival.duration_s
    arrivals_in_ramp = (start + end) / 2 * duration_s
    slope = (end - start) / duration_s
    inside = np.minimum(unit_times, arrivals_in_ramp)
    # 2c / (b + sqrt(b^2 + 2ac)) is the root that stays exact when the slope goes to
    # zero
    ramped_s = 2 * inside / (start + np.sqrt(start * start + 2 * slope * inside))
    times_s: NDArray[np.float64] = ramped_s + np.maximum(unit_times - arrivals_in_ramp, 0) / end
    return times_s

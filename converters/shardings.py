"""How the weights of an export are cut, from rules by patterns of their names."""

from collections.abc import Mapping, Sequence
from typing import Any

from converters.cuts import Cut, misfit
from converters.errors import BadSpec
from jaxport.weight_patterns import first_matches, unused


def parse_cuts(
    axes: Mapping[str, int], rules: Mapping[str, Sequence[Any]], weights: Mapping[str, Any]
) -> dict[str, Cut]:
    """How each weight is cut, by name; what no rule matches is not. BadSpec.

    rules: pattern of names -> for each dimension an axis, a tuple of axes or None. The first that matches counts.
    """
    if rules and not axes:
        raise BadSpec("shardings: given for one device; a mesh of several is needed, as mesh={'tensor': 2}")
    matches, cuts = first_matches(rules, weights), {}
    for name, pattern in matches.items():
        cut = tuple(rules[pattern])
        if why := misfit(cut, weights[name].shape, axes):
            raise BadSpec(f"shardings: {pattern!r} for {name!r}: {why}")
        if any(part is not None for part in cut):
            cuts[name] = cut
    if why := unused(rules, matches, weights):
        raise BadSpec(f"shardings: {why}")
    return cuts

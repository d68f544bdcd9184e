"""Lower: give every region of a plan its meaning, the program that its kernel computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from onnxopt.fusion.region import FusionPlan, Region


def lower(plan: FusionPlan, opsets: Mapping[str, int]) -> FusionPlan:
    """The plan with a meaning in each region. Regions that the search has lowered keep their meaning."""

    def lowered(region: Region) -> Region:
        if region.meaning is not None:
            return region
        return dataclasses.replace(region, meaning=region.kind.lower(region, opsets, plan.shapes))

    return dataclasses.replace(plan, regions=tuple(map(lowered, plan.regions)))

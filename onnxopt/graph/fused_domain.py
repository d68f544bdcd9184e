"""The domain of fused functions: `onnxopt.` and a digest of the kernels that one artifact has for them.

So the kernels of several artifacts can be registered with the same session options, and those of one artifact are the
same ones however often they are registered. While a model is being fused its functions are in the domain `onnxopt`,
where artifacts of earlier releases have theirs.
"""

from __future__ import annotations

BARE = "onnxopt"
_DIGITS = 16


def of(digest: str) -> str:
    """The domain of an artifact. digest: of its kernels, as hexadecimal digits."""
    return f"{BARE}.{digest[:_DIGITS]}"


def holds_fused(domain: str) -> bool:
    """Whether a domain is one of fused functions, of any artifact and any release."""
    return domain == BARE or domain.startswith(f"{BARE}.")

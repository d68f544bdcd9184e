"""Greedy decoding with a session of ONNX Runtime, as servers decode: the state of one step is the input of the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort

# How the names of a state begin, as an output and as an input: of transformers' exporter, of optimum and genai.
_STATES = {"output.": "input.", "present.": "past_key_values."}
_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64, "tensor(bool)": bool}
# Between the two largest logits, so that rounding chooses no token.
_MARGINS = {np.dtype(np.float32): 0.003, np.dtype(np.float16): 0.04}


def greedy(session: ort.InferenceSession, prompt: list[int], count: int = 16, **constant: Any) -> list[int]:
    """The `count` tokens behind `prompt`. constant: inputs that every step gets.

    The prompt is one step where the graph takes several tokens, else a step for each. AssertionError where two logits
    are so close that rounding would choose between them.
    """
    inputs = {i.name: i for i in session.get_inputs()}
    names = [o.name for o in session.get_outputs()]
    states = {name: _empty(i) for name, i in inputs.items() if name.startswith(tuple(_STATES.values()))}
    one_by_one = inputs["input_ids"].shape[1] == 1
    tokens, read = list(prompt), 0
    while len(tokens) < len(prompt) + count:
        new = tokens[read : read + 1] if one_by_one else tokens[read:]
        feeds = {**constant, **states, "input_ids": np.array([new], np.int64)}
        feeds["attention_mask"] = np.ones((1, read + len(new)), np.int64)
        feeds["position_ids"] = np.arange(read, read + len(new))[None]
        feeds["use_cache_branch"] = np.array([read > 0])
        outputs = dict(zip(names, session.run(None, {k: v for k, v in feeds.items() if k in inputs}), strict=True))
        states |= {_input_of(n): v for n, v in outputs.items() if _input_of(n) in states and v.size}
        read += len(new)
        if read == len(tokens):
            tokens.append(_largest(outputs["logits"][0, -1]))
    return tokens[len(prompt) :]


def _largest(logits: np.ndarray) -> int:
    second, first = np.argsort(logits)[-2:]
    margin = float(logits[first]) - float(logits[second])
    assert margin > _MARGINS[logits.dtype], "rounding could choose another token; take another prompt"
    return int(first)


def _input_of(output: str) -> str:
    prefix = next((p for p in _STATES if output.startswith(p)), None)
    return output if prefix is None else _STATES[prefix] + output.removeprefix(prefix)


def _empty(value: ort.NodeArg) -> np.ndarray:
    """A state before the first token: one sequence, and no tokens where their number is free."""
    dims = [d if isinstance(d, int) else 1 if axis == 0 else 0 for axis, d in enumerate(value.shape)]
    return np.zeros(dims, _DTYPES[value.type])


def choices(session: ort.InferenceSession, tokens: list[int]) -> list[int]:
    """The most likely token behind each of `tokens`, of which the graph reads a fixed number at a time."""
    inputs = {i.name: i for i in session.get_inputs()}
    names, each = [o.name for o in session.get_outputs()], inputs["input_ids"].shape[1]
    states = {name: _empty(i) for name, i in inputs.items() if name in map(_input_of, names)}
    found: list[int] = []
    for read in range(0, len(tokens), each):
        values = session.run(None, {**states, "input_ids": np.array([tokens[read : read + each]], np.int64)})
        outputs = dict(zip(names, values, strict=True))
        states = {_input_of(name): value for name, value in outputs.items() if _input_of(name) in states}
        found += map(_largest, outputs["logits"][0])
    return found


def greedy_in_room(session: ort.InferenceSession, prompt: list[int], count: int = 16) -> list[int]:
    """As `greedy`, token by token; caches with room are input and output of every step in the same buffer."""
    inputs, names = {i.name: i for i in session.get_inputs()}, [o.name for o in session.get_outputs()]
    states = {n: _empty(i) for n, i in inputs.items() if n.startswith(tuple(_STATES.values()))}
    caches = {n: ort.OrtValue.ortvalue_from_numpy(v) for n, v in states.items() if v.ndim == 4}
    others = {n: v for n, v in states.items() if n not in caches}
    tokens = list(prompt)
    for read in range(len(prompt) + count - 1):
        feeds = {"input_ids": np.array([tokens[read : read + 1]]), "position_ids": np.array([[read]]), **others}
        bound = session.io_binding()
        for name, value in feeds.items():
            bound.bind_cpu_input(name, np.ascontiguousarray(value))
        for name, cache in caches.items():
            bound.bind_ortvalue_input(name, cache)
        for name in names:
            if _input_of(name) in caches:
                bound.bind_ortvalue_output(name, caches[_input_of(name)])
            else:
                bound.bind_output(name)
        session.run_with_iobinding(bound)
        found = dict(zip(names, bound.get_outputs(), strict=True))
        others = {_input_of(n): v.numpy() for n, v in found.items() if _input_of(n) in others}
        if read + 1 == len(tokens):
            tokens.append(_largest(found["logits"].numpy()[0, -1]))
    return tokens[len(prompt) :]


def greedy_in_place(session: ort.InferenceSession, prompt: list[int], room: int, count: int = 16) -> list[int]:
    """The same with a state that has room for all tokens from the start, and is input and output of every step."""
    names = [o.name for o in session.get_outputs()]
    states = {
        i.name: ort.OrtValue.ortvalue_from_numpy(
            np.zeros([1 if a == 0 else room if a == 2 else d for a, d in enumerate(i.shape)], _DTYPES[i.type])
        )
        for i in session.get_inputs()
        if i.name.startswith(tuple(_STATES.values()))
    }
    tokens, read = list(prompt), 0
    while len(tokens) < len(prompt) + count:
        bound = session.io_binding()
        new = tokens[read:]
        bound.bind_cpu_input("input_ids", np.array([new], np.int64))
        bound.bind_cpu_input("attention_mask", np.ones((1, len(tokens)), np.int64))
        for name, state in states.items():
            bound.bind_ortvalue_input(name, state)
        for name in names:
            if _input_of(name) in states:
                bound.bind_ortvalue_output(name, states[_input_of(name)])
            else:
                bound.bind_output(name)
        session.run_with_iobinding(bound)
        read = len(tokens)
        tokens.append(_largest(bound.get_outputs()[names.index("logits")].numpy()[0, -1]))
    return tokens[len(prompt) :]

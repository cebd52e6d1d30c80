"""Traces of programs whose bottleneck is known: a small simulator of hosts, streams and ranks.

A program is a training loop with planted properties. Its host launches kernels on streams, waits
for its data loader, and meets the other ranks in collectives; its events are written in the format
of PyTorch's profiler. Each duration is multiplied by a random factor of its step (``noise``) and by
one of its own (``jitter``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np


@dataclass(frozen=True)
class Program:
    """A simulated training run; durations are in microseconds."""

    steps: int = 14
    noise: float = 0.02
    jitter: float = 0.02
    device: str | None = "NVIDIA A100-SXM4-80GB"
    vendor: str = "cuda"
    device_factor: float = 1.0
    host_factor: float = 1.0
    layers: int = 4
    attention: float = 300.0
    gemm: float = 350.0
    small_kernels: int = 0  # per layer
    host: float = 15.0
    loader: float = 100.0
    workers: bool = True
    work_before: tuple[str, float] | None = None  # a Python function, recorded only with stacks
    copy: float = 80.0
    items: int = 0
    to_host: float = 0.0
    save: float = 0.0
    save_every: int = 1
    allreduce: float = 0.0
    foreach: bool = True
    parameters: int = 40
    batch: int = 32
    dtype: str = "float"
    model: str = "transformer"  # or convolutions, or mutants: a graph per sample of the batch
    accumulate: int = 1  # batches per step
    backwards: int = 1  # of each batch
    validations: int = 0  # forward passes of other batches at the end of a step
    shapes: bool = True
    checkpointing: bool = False
    compiled: bool = False
    graph: bool = False
    recompile: float = 0.0
    sync: bool = True
    marks: bool = True
    stacks: bool = False
    world: int = 1
    ranks: tuple[int, ...] = ()  # ranks that write a trace; all by default
    skew: Mapping[int, float] = field(default_factory=dict)  # delay of the start by rank
    slow: Mapping[int, float] = field(default_factory=dict)  # additional loader time by rank
    lost: bool = False  # whether some events of the device are missing
    unknown: int = 0  # events of an unknown category
    cycles: int = 1


_OPERATORS = {
    "convolutions": ("conv2d", "batch_norm", "relu"),
    "mutants": ("index_select", "index_add", "masked_fill"),
}
_MODULES = {"convolutions": "Conv2d", "mutants": "MutantLayer"}


def write(program: Program, folder: Path, seed: int) -> Path:
    """Simulate a program and write its traces; return the file, or the folder if several."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for cycle in range(program.cycles):
        rng = np.random.default_rng([seed, cycle])
        factors: list[float] = np.exp(rng.normal(0, program.noise, program.steps)).tolist()
        ranks = [_Rank(program, number, factors, rng, cycle) for number in range(program.world)]
        trainings = [rank.train() for rank in ranks]
        # A training yields the length of each collective; all ranks meet in it.
        while lengths := [length for one in trainings if (length := next(one, None)) is not None]:
            begins = [max(rank.now, *rank.free.values()) + 3 for rank in ranks]
            for rank, begin, length in zip(ranks, begins, lengths, strict=True):
                rank.collective(begin, max(begins) + length)
        for number in program.ranks or range(program.world):
            end = f"_cycle{cycle}" if program.cycles > 1 else ""
            files.append(folder / f"{folder.name}_rank{number}{end}.json")
            files[-1].write_bytes(msgspec.json.encode(ranks[number].trace()))
    return files[0] if len(files) == 1 else folder


class _Rank:
    """The clock, the streams and the events of one process."""

    def __init__(self, program: Program, number: int, factors: Any, rng: Any, cycle: int) -> None:
        self.program = program
        self.number = number
        self._rng = rng
        self._factors = factors
        self._jitter = list[float]()
        self._first = cycle * program.steps
        self.now = cycle * 60e6 + 1000.0 + program.skew.get(number, 0.0)
        self.free = {7: 0.0, 20: 0.0}  # when each stream becomes idle
        self._events: list[dict[str, Any]] = []
        self._step = self._ids = self._sequence = self._pending = 0

    def trace(self) -> dict[str, Any]:
        """Return the trace of this process as a profiler writes it."""
        program = self.program
        events = self._events
        about: dict[str, Any] = {
            **{"schemaVersion": 1, "baseTimeNanoseconds": 1_700_000_000_000_000_000},
            **{"record_shapes": int(program.shapes), "with_stack": int(program.stacks)},
        }
        if program.device is not None:
            about["deviceProperties"] = [{"id": 0, "name": program.device}]
        if program.world > 1:
            about["distributedInfo"] = {"rank": self.number, "world_size": program.world}
        if program.lost:
            # As after a buffer overflow, kernels in the middle are missing.
            cut = range(len(events) // 3 + 1, 2 * (len(events) // 3))
            events = [e for i, e in enumerate(events) if i not in cut or e["cat"] != "kernel"]
            events.append({"ph": "X", "name": "broken", "cat": "cpu_op", "ts": 1e9})
        strange = {**events[0], "name": "mystery_op", "cat": "quantum_event", "tid": 99}
        return about | {"traceEvents": events + [strange] * program.unknown}

    def train(self) -> Iterator[float]:
        """Run all steps; yield the length of each collective, in which all processes meet."""
        program = self.program
        for self._step in range(program.steps):
            name = f"ProfilerStep#{self._first + self._step}" if program.marks else None
            with self._span("user_annotation", name):
                yield from self._train_step()
        self.now += 20
        if program.device is not None:
            self._wait("DeviceSynchronize")

    def _train_step(self) -> Iterator[float]:
        program = self.program
        step = self._step
        how = "_MultiProcessing" if program.workers else "_SingleProcess"
        with self._span("user_annotation", f"enumerate(DataLoader)#{how}DataLoaderIter.__next__"):
            self._spend(program.loader + program.slow.get(self.number, 0.0))
        if program.work_before is not None:
            name, length = program.work_before
            with self._span("cpu_op", "aten::randperm", sequence=self._sequence + 1):
                self._spend(10)
            with self._python(f"train.py(30): {name}"):
                self._spend(length)
        if program.device is not None:
            with self._span("cpu_op", "aten::copy_"):
                self._spend(5)
                self._launch("Memcpy HtoD (Pinned -> Device)", program.copy, "gpu_memcpy")
        if program.recompile and step % 2:
            with self._span("user_annotation", "_compile.compile_inner (dynamo_timed)"):
                self._spend(program.recompile)
        for _ in range(program.accumulate):
            self._pass()
        if program.world > 1:
            with self._span("cpu_op", "c10d::allreduce_", thread=2), self._call(thread=2) as number:
                self._spend(8)
                self._pending = number
            yield program.allreduce * self._factor()
        self._optimize()
        for _ in range(program.items):
            self._item()
        if program.to_host:
            copy = "Memcpy DtoH (Device -> Pageable)"
            spans = (self._span("cpu_op", f"aten::{x}") for x in ("to", "copy_"))
            with next(spans), next(spans), self._call("MemcpyAsync") as number:
                self.now = self._on_stream(copy, program.to_host, number, "gpu_memcpy") + 2
        if program.save and step % program.save_every == program.save_every - 1:
            with self._python("torch/serialization.py(900): save"):
                with self._span("cpu_op", "aten::detach"):
                    self._spend(5)
                self._spend(program.save)
        for _ in range(program.validations):
            self._model()
        if program.sync and program.device is not None:
            self._wait("DeviceSynchronize")

    def _pass(self) -> None:
        """Run a batch forward and backward."""
        program = self.program
        self._model()
        self._compute("aten::cross_entropy_loss", "softmax_warp_forward", 20)
        self._sequence += 1
        first = self._sequence
        for _ in range(program.backwards):
            for layer in reversed(range(0 if program.graph else program.layers)):
                self._backward(layer, first)

    def _model(self) -> None:
        region = "Torch-Compiled Region: 0/0" if self.program.compiled else None
        with self._python("nn.Module: Model_0"), self._span("cpu_op", region):
            self._forward()

    def _forward(self) -> None:
        program = self.program
        if not program.graph:
            for layer in range(program.layers):
                self._layer(layer)
            return
        kernels = [("flash_fwd_kernel", program.attention), ("ampere_sgemm", program.gemm)]
        with self._call("GraphLaunch") as number:
            self._spend(10)
            for name, length in kernels * program.layers * 3:
                self._on_stream(name, length, number)

    def _layer(self, layer: int, thread: int = 1) -> None:
        program = self.program
        if program.model != "transformer":
            self._other_layer(layer, thread)
            return
        with self._python(f"nn.Module: Attention_{layer}"):
            self._sequence += 1
            kernel = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>"
            name = "aten::scaled_dot_product_attention"
            dims = [[program.batch, 8, 128, 64]] * 3
            self._compute(name, kernel, program.attention, dims=dims, thread=thread)
        with self._python(f"nn.Module: Linear_{layer}"):
            self._sequence += 1
            kernel = "triton_mm_fused_0" if program.compiled else "ampere_sgemm_128x64_tn"
            dims = [[program.batch, 512], [512, 512]]
            self._compute("aten::linear", kernel, program.gemm, dims=dims, thread=thread)
            for _ in range(program.small_kernels):
                self._sequence += 1
                self._compute("aten::mul", "vectorized_elementwise_kernel", 2, thread=thread)

    def _other_layer(self, layer: int, thread: int) -> None:
        """Run a layer of convolutions, or of messages on a graph for each sample."""
        program = self.program
        operators = _OPERATORS[program.model]
        n_graphs = program.batch if program.model == "mutants" else 1
        lengths = (program.attention / n_graphs, program.gemm / n_graphs, 5.0)
        with self._python(f"nn.Module: {_MODULES[program.model]}_{layer}"):
            for _ in range(n_graphs):
                for name, length in zip(operators, lengths, strict=True):
                    self._sequence += 1
                    dims = [[program.batch, 64, 56, 56], [64, 64, 3, 3]]
                    self._compute(f"aten::{name}", f"{name}_kernel", length, dims, thread)

    def _other_backward(self, first: int) -> None:
        program = self.program
        operators = _OPERATORS[program.model]
        n_graphs = program.batch if program.model == "mutants" else 1
        lengths = (2 * program.attention / n_graphs, 2 * program.gemm / n_graphs, 5.0)
        for _ in range(n_graphs):
            for name, length in zip(operators, lengths, strict=True):
                node = f"{name.title().replace('_', '')}Backward0"
                outer = f"autograd::engine::evaluate_function: {node}"
                with (
                    self._span("cpu_op", outer, thread=2, sequence=first),
                    self._span("cpu_op", node, thread=2, sequence=first),
                ):
                    back = f"{name}_backward"
                    self._compute(f"aten::{back}", f"{back}_kernel", length, thread=2)

    def _backward(self, layer: int, first: int) -> None:
        if self.program.model != "transformer":
            self._other_backward(first - layer - 1)
            return
        program = self.program
        name = "LinearBackward0"
        sequence = first - 2 * (program.layers - layer)
        outer = f"autograd::engine::evaluate_function: {name}"
        with self._span("cpu_op", outer, thread=2, sequence=sequence):
            if program.checkpointing:
                self._layer(layer, thread=2)
            with self._span("cpu_op", name, thread=2, sequence=sequence):
                kernel = "triton_mm_fused_1" if program.compiled else "ampere_sgemm_128x64_nn"
                self._compute("aten::mm", kernel, 2 * program.gemm, thread=2)
        name = "ScaledDotProductFlashAttentionBackward0"
        with self._span("cpu_op", name, thread=2, sequence=sequence - 1):
            kernel = "void pytorch_flash::flash_bwd_kernel<Flash_bwd_kernel_traits<64>>"
            operator = "aten::_flash_attention_backward"
            length = 2 * program.attention
            self._compute(operator, kernel, length, thread=2)

    def collective(self, begin: float, end: float) -> None:
        """Run a collective between two times, which are those of all processes."""
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        self._on_device(name, "kernel", begin, end - begin, 20, self._pending)
        self.free = {7: max(self.free[7], end), 20: end}

    def _optimize(self) -> None:
        names = ["_foreach_add_", "_foreach_addcdiv_"]
        kernel = "multi_tensor_apply"
        length = 60
        if not self.program.foreach:
            names = ["add_", "mul_", "addcdiv_"] * self.program.parameters
            kernel = "vectorized_elementwise"
            length = 6
        with self._span("user_annotation", "Optimizer.step#Adam.step"):
            for name in names:
                self._compute(f"aten::{name}", f"{kernel}_kernel", length)

    def _item(self) -> None:
        operators = (self._span("cpu_op", f"aten::{x}") for x in ("item", "_local_scalar_dense"))
        with self._python("train.py(44): log_loss"), next(operators), next(operators):
            self._spend(4)
            if self.program.device is not None:
                self._launch("Memcpy DtoH (Device -> Pageable)", 2, "gpu_memcpy")
                self._wait("StreamSynchronize")
        with self._span("cpu_op", "aten::mul"):
            self._spend(10)
        self._spend(150)

    def _compute(
        self,
        name: str,
        kernel: str,
        length: float,
        dims: Any = (),
        thread: int = 1,
    ) -> None:
        program = self.program
        length *= program.batch / 32 * {"double": 4, "float": 1}[program.dtype]
        types = [program.dtype] * len(dims)
        is_sized = bool(dims) and program.shapes
        shapes = {"Input Dims": dims, "Input type": types} if is_sized else {}
        with self._span("cpu_op", name, thread, self._sequence if thread == 1 else None, shapes):
            if program.device is None:
                self._spend(length)
                return
            self._spend(program.host / 2)
            self._launch(kernel, length, "kernel", thread)
            self._spend(program.host / 2)

    def _launch(self, name: str, length: float, category: str, thread: int = 1) -> None:
        call = "LaunchKernel" if category == "kernel" else "MemcpyAsync"
        with self._call(call, thread=thread) as number:
            self._spend(4)
            self._on_stream(name, length, number, category)

    def _on_stream(self, name: str, length: float, number: int, category: str = "kernel") -> float:
        begin = max(self.now + 2, self.free[7])
        lasts = length * self.program.device_factor * self._factor()
        self._on_device(name, category, begin, lasts, 7, number)
        self.free[7] = begin + lasts
        return self.free[7]

    def _on_device(
        self,
        name: str,
        category: str,
        begin: float,
        length: float,
        stream: int,
        number: int,
    ) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream}
        event |= {"ts": round(begin, 3), "dur": round(length, 3)}
        args = {"stream": stream, "device": 0, "correlation": number}
        self._events.append(event | {"args": args})

    def _wait(self, call: str) -> None:
        with self._call(call):
            self.now = max(self.now, *self.free.values()) + 2

    def _spend(self, length: float) -> None:
        self.now += length * self.program.host_factor * self._factor()

    def _factor(self) -> float:
        if not self._jitter:
            # Drawing one at a time would take longer than everything else.
            self._jitter = np.exp(self._rng.normal(0, self.program.jitter, 4096)).tolist()
        return float(self._factors[self._step] * self._jitter.pop())

    def _python(self, name: str) -> AbstractContextManager[None]:
        return self._span("python_function", name if self.program.stacks else None)

    @contextmanager
    def _call(self, name: str = "LaunchKernel", thread: int = 1) -> Iterator[int]:
        self._ids += 1
        number = self._ids
        call = f"{self.program.vendor}{name}"
        with self._span("cuda_runtime", call, thread=thread, args={"correlation": number}):
            yield number

    @contextmanager
    def _span(
        self,
        category: str,
        name: str | None,
        thread: int = 1,
        sequence: Any = None,
        args: Any = (),
    ) -> Iterator[None]:
        """Record an event that spans the body; without a name, only time passes."""
        # Without a device, the backward pass runs on the calling thread.
        thread = 1 if self.program.device is None else thread
        numbered = {} if sequence is None else {"Sequence number": sequence}
        event: dict[str, Any] = {"ph": "X", "cat": category, "name": name, "pid": 100}
        event |= {"tid": thread, "ts": round(self.now, 3), "dur": 0, "args": dict(args) | numbered}
        if name is not None:
            self._events.append(event)
        yield
        self.now += 0.2
        event["dur"] = round(self.now - event["ts"], 3)

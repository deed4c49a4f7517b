"""vLLM's AsyncLLM behind the engine protocol, on CPU and GPU.

Behaviour logprobs are the sampling distribution's own (`logprobs_mode="processed_logprobs"`, top-p and top-k off).
New weights come through a worker extension that reads a safetensors file (`vllm_weights.py`): AsyncLLM keeps its
model in a child process, and tensors do not survive a nested `collective_rpc` argument.  Control stays inside this
process: no vLLM server is opened.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence
from typing import Any

from agentrl.config import VllmEngine
from agentrl.rollout.engine import EngineError, EngineSettings, Generated, RequestRefused, Sampling, WeightError
from agentrl.types import PolicyVersion

SYNC_TIMEOUT_S = 600.0
CPU_STEP_TOKENS = 4096
CPU_BLOCK_TOKENS = 32
EXTENSION = "agentrl.rollout.vllm_weights.WeightReader"


async def start_vllm(settings: EngineSettings) -> AsyncVllm:
    """Start an engine.  Sets environment variables that vLLM reads once, at import: one engine a process."""
    if not isinstance(settings.engine, VllmEngine):
        raise TypeError(f"not vLLM's settings: {settings.engine!r}")
    on_gpu = settings.gpus > 0
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if not on_gpu:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, settings.cores))
        os.environ["OMP_WAIT_POLICY"] = "passive"
        if settings.engine.tensor_parallel == 1:
            # Otherwise vLLM puts the model into a process below its core's, and every step pays for the way there.  The
            # threads that it would bind in that process are bound here.
            os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
            os.environ["OMP_NUM_THREADS"] = str(len(settings.cores))
            os.environ["OMP_PROC_BIND"] = "true"
            os.environ["OMP_PLACES"] = ",".join(f"{{{core}}}" for core in settings.cores)
        os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")
        os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)  # would override the job's kv_cache_gib

    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    config = settings.engine
    arguments: dict[str, Any] = {
        "model": settings.model_path,
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": 1 if config.deterministic else config.max_num_seqs,
        "enable_prefix_caching": not config.deterministic,
        "tensor_parallel_size": config.tensor_parallel,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",  # the model's own would turn top-p or top-k on
        "skip_tokenizer_init": True,
        "enforce_eager": not on_gpu,
        "disable_log_stats": True,
        "seed": 0,
        "worker_extension_cls": EXTENSION,
    }
    if on_gpu:
        arguments["gpu_memory_utilization"] = config.gpu_memory_utilization
    else:
        arguments["kv_cache_memory_bytes"] = int(config.kv_cache_gib * 2**30)
        # A seeded request whose prompt is cut in two by the step's budget kills vLLM 0.32 on CPU ("CPU Generator
        # does not use offset"): prompts are taken whole.
        arguments["enable_chunked_prefill"] = False
        # Only whole blocks are found again in the prefix cache, and vLLM's 128 is half a short dialogue.
        arguments["block_size"] = CPU_BLOCK_TOKENS
        arguments["max_num_batched_tokens"] = max(settings.max_model_len, CPU_STEP_TOKENS)
    # Off the event loop: building the engine blocks until its child process is up.
    llm = await asyncio.to_thread(AsyncLLM.from_engine_args, AsyncEngineArgs(**arguments))
    await llm.collective_rpc("cut_vocabulary", args=(settings.vocabulary,))
    return AsyncVllm(llm, settings.stop_token_ids)


class AsyncVllm:
    """See `Engine`."""

    def __init__(self, llm: Any, stop_token_ids: tuple[int, ...]) -> None:
        from vllm import SamplingParams
        from vllm.exceptions import VLLMClientError
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError

        self._llm, self._stops = llm, list(stop_token_ids)
        self._params, self._input, self._final = SamplingParams, tokens_input, RequestOutputKind.FINAL_ONLY
        self._refused, self._dead = VLLMClientError, EngineDeadError
        self._ids = itertools.count()
        self._admitting = asyncio.Event()
        self._admitting.set()
        self._sync = asyncio.Lock()
        self.version = PolicyVersion(0)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generated:
        await self._admitting.wait()
        first = self.version
        output = await self._run(
            prompt_ids,
            self._params(
                temperature=sampling.temperature,
                max_tokens=sampling.max_tokens,
                seed=sampling.seed,
                top_p=1.0,
                top_k=0,
                stop_token_ids=self._stops,
                ignore_eos=True,  # the stop ids are the template's; they hold the eos where it ends a turn
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
                output_kind=self._final,
            ),
        )
        completion = output.outputs[0]
        token_ids = list(completion.token_ids)
        if completion.finish_reason not in ("stop", "length"):
            raise EngineError(f"vLLM ended a request with {completion.finish_reason!r}")
        flat = completion.logprobs
        if len(flat.start_indices) != len(token_ids):
            raise EngineError(f"vLLM gave {len(flat.start_indices)} logprobs for {len(token_ids)} tokens")
        # One entry a position: the sampled token's, which vLLM puts first.
        logprobs = [flat.logprobs[start] for start in flat.start_indices]
        return Generated(token_ids, logprobs, completion.finish_reason, first, self.version)

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        output = await self._run(
            token_ids,
            self._params(max_tokens=1, prompt_logprobs=0, temperature=0.0, detokenize=False, output_kind=self._final),
        )
        positions = output.prompt_logprobs[1:]
        return [float(at[token].logprob) for at, token in zip(positions, token_ids[1:], strict=True)]

    async def load_weights(self, path: str, version: PolicyVersion) -> None:
        async with self._sync:
            self._admitting.clear()
            try:
                await self._within(self._llm.pause_generation(mode="keep", clear_cache=False), "vLLM to pause")
                await self._within(self._llm.collective_rpc("read_weights", args=(path,)), f"vLLM to read {path}")
                # Running requests are preempted: their keys and values belong to the old weights too.
                done = await self._within(
                    self._llm.reset_prefix_cache(reset_running_requests=True), "vLLM to reset its prefix cache"
                )
                if done is not True:
                    raise WeightError("vLLM did not reset its prefix cache after a weight sync: it would answer stale")
                self.version = version
                await self._within(self._llm.resume_generation(), "vLLM to resume")
            finally:
                self._admitting.set()

    async def close(self) -> None:
        self._llm.shutdown()

    async def _run(self, token_ids: Sequence[int], params: Any) -> Any:
        last = None
        try:
            async for output in self._llm.generate(self._input(list(token_ids)), params, f"r{next(self._ids)}"):
                last = output
        except self._refused as error:
            raise RequestRefused(f"vLLM refused a request of {len(token_ids)} tokens: {error}") from error
        except Exception as error:  # nothing says that the engine is sound after any other
            raise EngineError(f"vLLM broke at a request of {len(token_ids)} tokens: {error!r}") from error
        if last is None or not last.finished:
            raise EngineError("vLLM ended a request without an answer")
        return last

    async def _within(self, call: Any, what: str) -> Any:
        try:
            return await asyncio.wait_for(call, SYNC_TIMEOUT_S)
        except TimeoutError as error:
            raise EngineError(f"waited {SYNC_TIMEOUT_S:.0f} s for {what}") from error
        except self._dead as error:
            raise EngineError(f"vLLM died while waiting for {what}: {error!r}") from error
        except Exception as error:  # whatever the worker process raised comes back in the engine's wrapping
            raise WeightError(f"while waiting for {what}: {error}") from error

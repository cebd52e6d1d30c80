"""Names of communication: those of every library, and none that only look like one."""

import pytest

from deltacell.profile.trace.categories import is_collective
from deltacell.profile.trace.trace import NAMES

NAMES_OF = {
    "NCCL": ["ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "nccl:barrier"],
    "RCCL": ["void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)", "rccl:send"],
    "oneCCL": ["oneccl_ring_kernel", "xccl:broadcast"],
    "Gloo": ["gloo:broadcast"],
    "UCC": ["ucc:broadcast"],
    "DeepEP": [
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)",
        "void deep_ep::internode_ll::combine<true, 7168, 9>(void*, void*)",
    ],
    "NVSHMEM": ["nvshmemi_barrier_on_stream_kernel", "NVSHMEM::put"],
    "MSCCL++": ["void mscclpp::allreduce7<__half>(__half*, __half*)"],
    "symmetric memory": [
        "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>()",
        "multimem_all_reduce_kernel",
        "symm_mem::one_shot_all_reduce",
    ],
    "custom all-reduce": ["void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>()"],
}


def test_every_library_has_names_and_a_source():
    assert set(NAMES["libraries"]) == set(NAMES_OF)
    assert all(library["source"] for library in NAMES["libraries"].values())


@pytest.mark.parametrize("library", NAMES_OF)
def test_the_names_of_a_library_are_communication(library):
    assert all(is_collective(name) for name in NAMES_OF[library])


@pytest.mark.parametrize(
    "name",
    [
        "c10d::broadcast_",
        "_c10d_functional::all_reduce",
        "FSDP::all_gather (layers.3)",
        "mpi:send",
    ],
)
def test_what_libraries_share_is_communication(name):
    assert is_collective(name)


@pytest.mark.parametrize(
    "name",
    [
        "void deep_ep::layout::get_dispatch_layout<256>(int const*, int*)",
        "void at::native::reduce_kernel<512, 1, float>()",
        "aten::all",
        "aten::scatter_reduce_",
        "success:rate",
        "two_shot_detector",
    ],
)
def test_what_only_looks_like_communication_is_none(name):
    assert not is_collective(name)

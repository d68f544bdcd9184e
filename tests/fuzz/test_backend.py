"""A fixed sample of ONNX's backend suite through the whole pipeline; `make fuzz` runs all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import backend

# By the operator, so that the sample does not change when the suite gets other cases.
NAMES = (
    "test_abs", "test_add_bcast", "test_and3d", "test_argmax_keepdims_example", "test_attention_4d_causal_expanded",
    "test_basic_conv_with_padding", "test_batchnorm_example", "test_cast_FLOAT_to_FLOAT16",
    "test_clip_example", "test_col2im", "test_concat_3d_axis_2", "test_constantofshape_int_zeros",
    "test_cumsum_2d_axis_1", "test_depthtospace_example", "test_dequantizelinear", "test_div_uint8",
    "test_div_int32_trunc",
    "test_dynamicquantizelinear_expanded", "test_einsum_batch_matmul", "test_elu_expanded_ver18", "test_equal_string",
    "test_expand_dim_changed", "test_gather_0", "test_gather_elements_1", "test_gathernd_example_int32",
    "test_gelu_tanh_1_expanded", "test_gemm_default_vector_bias", "test_gru_batchwise", "test_hardmax_axis_1",
    "test_identity_sequence", "test_instancenorm_epsilon", "test_isnan", "test_layer_normalization_4d_axis2_expanded",
    "test_less_equal_expanded", "test_logsoftmax_axis_1_expanded", "test_loop11", "test_lstm_with_peepholes",
    "test_matmul_4d", "test_mod_mixed_sign_int32", "test_mvn_expanded", "test_nllloss_NCd1_ii_expanded",
    "test_nonmaxsuppression_two_classes", "test_onehot_with_axis", "test_reflect_pad", "test_pow_types_int32_float32",
    "test_quantizelinear_axis", "test_range_float_type_positive_delta", "test_reduce_log_sum_exp_keepdims_random",
    "test_reduce_max_negative_axes_keepdims_example", "test_reduce_sum_empty_axes_input_noop_example",
    "test_reshape_allowzero_reordered", "test_resize_upsample_scales_nearest", "test_reversesequence_time",
    "test_rotary_embedding_expanded", "test_scan9_sum", "test_scatter_elements_with_axis", "test_scatternd",
    "test_sce_mean_3d_expanded", "test_sequence_insert_at_back", "test_sequence_map_add_2_sequences_expanded",
    "test_slice_default_axes", "test_softmax_large_number_expanded", "test_softplus_example_expanded_ver18",
    "test_split_to_sequence_1", "test_split_variable_parts_2d_opset18", "test_squeeze_negative_axes",
    "test_tile_precomputed", "test_top_k", "test_transpose_all_permutations_4", "test_unsqueeze_unsorted_axes",
    "test_where_example", "test_xor_bcast4v3d", "test_GLU", "test_Conv2d_groups", "test_operator_addmm",
    "test_expand_shape_model2", "test_sequence_model3", "light_squeezenet",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_case(name: str, tmp_path: Path, library: Path) -> None:
    outcome = backend.examine(backend.cases(pools=False)[name], tmp_path)
    assert outcome.is_expected, f"{outcome.outcome}: {outcome.reason}"


def test_the_sample_is_of_the_suite_fused_and_verified(tmp_path: Path, library: Path) -> None:
    """Guards the test above: cases that ONNX Runtime itself does not pass would test nothing."""
    cases = backend.cases(pools=False)
    assert set(NAMES) <= set(cases)
    outcome = backend.examine(cases["test_elu_expanded_ver18"], tmp_path)  # Gelu, decomposed, is one operator
    assert outcome.outcome == backend.PASSED and outcome.kernels > 0


def test_wrong_outputs_are_findings() -> None:
    import numpy as np

    right, wrong = np.ones(3, np.float32), np.array([1, 1, 1.01], np.float32)
    assert backend._difference([right], [right], 1e-3, 1e-7) == ""
    assert backend._difference([right], [wrong], 1e-3, 1e-7) == "output 0: other values"
    assert not backend._within_limit([right], [wrong], "float32")
    assert "shape" in backend._difference([right], [right[:2]], 1e-3, 1e-7)
    assert not backend.Outcome("test_abs", backend.UNVERIFIED).is_expected

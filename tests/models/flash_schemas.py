"""Operators of flash attention as versions of torch declare them."""

_INPUTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? cum_seq_q, Tensor? cum_seq_k, SymInt max_q, "
    "SymInt max_k, float dropout_p, bool is_causal, bool return_debug_mask, *, float? scale=None, "
    "SymInt? window_size_left=None, SymInt? window_size_right=None, Tensor? seqused_k=None, "
    "Tensor? alibi_slopes=None"
)
_PAGES = ", Tensor? block_table=None, int? num_splits=None"
_SEEDS, _STATE = "Tensor philox_seed, Tensor philox_offset", "Tensor rng_state, Tensor unused"
_OUTPUTS = "(Tensor output, Tensor softmax_logsumexp, {}, Tensor debug_attn_mask)"
_BACKWARD = (
    "Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, "
    "Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p, "
    "bool is_causal, {}, *, float? scale=None, SymInt? window_size_left=None, "
    "SymInt? window_size_right=None"
)
_DECLARED = {
    "2.6.0": (_INPUTS, _SEEDS),
    "2.8.0": (_INPUTS, _STATE),
    "2.9.1": (_INPUTS, _STATE),
    "2.10.0": (_INPUTS, _STATE),
    "2.11.0": (_INPUTS, _STATE),
    "2.13.0": (_INPUTS + _PAGES, _STATE),
}
FORWARD = {
    version: f"_flash_attention_forward({inputs}) -> {_OUTPUTS.format(left)}"
    for version, (inputs, left) in _DECLARED.items()
}
"""Forward operator by version of torch."""
BACKWARD = {
    version: f"_flash_attention_backward({_BACKWARD.format(left)}) -> (Tensor, Tensor, Tensor)"
    for version, (_, left) in _DECLARED.items()
}
"""Backward operator by version of torch."""

"""What the authors of the two studies published, on their machines: never ours, drawn and named as theirs."""

from __future__ import annotations

STUDY_A = "study A (GPT-2 small, fp32, a processor with 8 GB)"
A_TOK_PER_S = {"no_cache": 5.52, "kv_cache": 16.45, "static_batch": 35.17}
A_STEP_S = {"kv_cache": 0.058, "static_batch": 0.11}
A_PEAK_MB = {"kv_cache": 1208, "static_batch": 1147}  # 4 x 20 tokens, one prompt at a time and batched
A_PASSES = {"kv_cache": 80, "static_batch": 20}
A_KV_30_TOKENS_MB = 0.66
A_KV_TOKEN_BYTES = 2 * 12 * 768 * 4  # by the shape of its model: K and V, layers, width, fp32

STUDY_B = "study B (GPT-2 small, fp32, A40)"
B_PROMPT = "Hello, I'm a language model,"
B_CONTEXTS = (10, 100, 500, 1000)
B_NO_CACHE_S = (4.89e-3, 5.20e-3, 12.70e-3, 29.69e-3)
B_CACHE_S = (4.94e-3, 4.95e-3, 4.95e-3, 4.95e-3)
B_SPEED_UP = (1.0, 1.1, 2.6, 6.0)
B_TOTAL_S = {"no_cache": 14.66, "cache": 5.03}  # all 1,016 tokens
B_FLOP_RATIO = (10, 100, 500, 1000)
B_FLOPS_PER_S = (0.51e12, 4.82e12, 10.46e12, 9.56e12)  # uncached, at B_CONTEXTS
B_PEAK_FLOPS_PER_S = 37.4e12
B_JUMPS = (256, 448, 640, 768, 896)  # contexts where the uncached step jumps
B_FLOOR_S = 4.95e-3
B_FLAT_TO = 200  # tokens, of the uncached step
B_HEAD_SHARE = 0.27  # of an uncached step's FLOPs
B_LOGIT_DIFFERENCE = 6.1e-5  # to transformers
B_ONE_TOKEN_DIFFERENCE = 9e-8  # of one-token steps onto a cache with new keys before old: nothing shows
B_KV_OVERTAKES_AT = 6750  # rows x context
B_KV_BYTES_PER_TOKEN = 72 * 2**10
B_WEIGHTS_BYTES = 475 * 2**20
B_SPARE_BYTES = 9.5 * 2**20  # allocated beyond the formula at most, put down to the allocator
B_MASK_BYTES = 48 * 2**20  # 1024 x 1024 fp32 in each of 12 layers
B_WORKSPACE_BYTES = 8_519_688

"""Why measured and claimed numbers differ, as far as it was found out."""

P95 = {"vllm": "", "vtc": "", "qlm": ""}
THROUGHPUT = {"vllm": "", "vtc": "", "qlm": ""}
HOMOGENEOUS = MAC_SQL = TENANTS = BALANCE = QUEUE = PLACEMENT = ALPHA = TUNING = ""

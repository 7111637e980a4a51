"""Why measured and claimed numbers differ, as far as it was found out."""

GAIN = (
    "what vLLM gains is the paper's by the choice of the load; Tempo leaves late what would be late"
    " anyway and serves the rest in time"
)
DECAY = {
    "tempo": "what is hopeless waits, and so costs nobody else anything: nothing piles up for those"
    " who come later",
    "vllm": "the load was chosen so: first come, first served, everybody waits for all before",
}
GOODPUT = (
    "higher than claimed where vLLM is overrun for most of the hour: then nearly all it serves is"
    " late, and the ratio says how little that little is"
)
THROUGHPUT = (
    "a gateway's order costs an engine nothing, and no seat is ever left empty for want of a call;"
    " what the paper loses, it loses in the engine's own loop. Sarathi-FCFS is vLLM's default by"
    " now: here it is vllm, play for play"
)
ORACLE = (
    "by definition density hardly depends on length, so that the truth helps little; and rolling"
    " quantiles know all there is to know here: prompts have no text, lengths one law"
)
FLOOR = (
    "the second number is what vLLM would gain over what it does if all that it did were in time:"
    " no order can reach the floor where it is below it. In a quarter of an hour queues are short,"
    " and f = SLO / time is near 1 for those who are late by seconds"
)
BEST = (
    "least attained service puts single calls before collective requests, which are fewer and have"
    " most of the tokens: many are in time, and little is gained. By definition a deadline that can"
    " be kept is no reason to hurry, so chat waits with the rest where there is no need to"
)
CLASSES = {
    "latency": "chat that is late is left behind fresh chat",
    "throughput": "as chat",
    "collective": "of those done within the hour; Tempo does more of them in time, and those that"
    " it gave up come last of all, while the others do without most of them",
}
PARTS = {
    "graphs": "without structure every stage has the whole of the remaining time, and a request's"
    " last stages come too late",
    "lengths": "without a length model every call is taken to have the same prior; as all lengths"
    " have one law here, that is hardly less than what can be known",
}
PENALTY = "scheduled with a = 1, scored with the others"
SETTINGS = {
    "slo-scale": "SLOs x 0.5 and x 2; 8B, batch 16, load 1.1, 15 minutes",
    "mix": "chat, whole answers or collective requests alone, 1:1:1, 1:3:1, and 3:1:1 with a sixth"
    " of best effort; 8B, batch 16, load 1.1, 15 minutes; against vLLM alone",
    "bursts": "Gamma gaps with CV 4, and rates as bursty as Azure's code trace; 8B, batch 16, load"
    " 1.1, 15 minutes",
}
ROBUST = {
    "slo-scale": "the best is least attained service, as at the paper's SLOs; see load-best",
    "mix": "least where requests of one kind compete for the same deadline",
    "bursts": "BurstGPT's own trace is not part of this project: it is modelled by Gamma gaps too",
}

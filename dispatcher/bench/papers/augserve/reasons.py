"""Why measured and claimed numbers differ, as far as it was found out."""

from __future__ import annotations

GOODPUT = (
    "higher over vLLM, as first come, first served has nearly everybody late once the queue is"
    " longer than a second, and AugServe's order leaves late who would be late anyway; lower over"
    " InferCept on Merge, as that is better here than in the paper: its discarded contexts stay in"
    " a prefix cache while there is room, what is evicted falls into host memory at no cost, and"
    " calls are held back so that it does not preempt"
)
TOOLBENCH = (
    "a question is about twice the work that it is in the paper, so the rate at which vLLM is"
    " overrun as much is half of the paper's"
)
FLOOR = (
    "where the floor is missed, the other scheduler serves nearly all that comes: no order can do"
    " so much better"
)
TTFT = (
    "who has no first token by the end counts as what it has waited; vLLM's and InferCept's first"
    " tokens come ever later under overload, and their mean grows with the time that is looked at"
)
NORMALISED = (
    "of what is over, so who was left behind is not in it; the paper's numbers are means over loads"
    " and the most at one"
)
COUNT = (
    "600 requests instead of 2,000, so that queues are shorter, in the mean, and more is within its"
    " SLOs; over all that came, and all are awaited"
)
BURSTS = "claimed by a table whose goodput rises with burstiness, and so not taken for a target"
BATCHING = (
    "a budget of tokens in flight before vLLM of today; it is compared with the paper's vLLM, and"
    " with an InferCept whose calls are held back by memory as well, so that only the bound on"
    " prompts per second and a tenth of the memory are between the two"
)
SCHEDULING = "0.87 is what the paper measures at this rate elsewhere; its Fig. 10 has no numbers"
QUEUEING = (
    "under overload somebody waits, and here a request waits anew before each of its calls; what"
    " the paper counts as executing it does not say"
)
PREDICTING = "rolling quantiles instead of a language model"
ENGINE = (
    "what is preserved takes memory from who is new, however long its call then waits; a prefix"
    " cache gives it to whoever needs it first"
)
SMALL = (
    "memory is a third of the larger GPU's, contexts are cut to 2,048 tokens; the paper gives"
    " neither rates nor numbers for it"
)
LOOSE = "who is a second late is late by little; who is in a queue of minutes is not"
TAIL = (
    "under overload who was given up waits longest; one call in fifty is the oldest, so that nobody"
    " waits for ever"
)
TPOT = "contexts are not computed again, and memory is not so full that requests are preempted"

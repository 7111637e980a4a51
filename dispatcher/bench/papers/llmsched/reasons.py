"""Why measured and claimed numbers differ, as far as it was found out."""

CUT: dict[str, str] = {
    "mixed": "work of engines is what orders jobs here; by time, as printed, less is saved"
    " (variant-by-time)",
    "predefined": "jobs of both applications have as many calls, always, and how long these are"
    " shows late; an order by the true work of jobs (tried apart from this) saves 0.25, 0.11 and"
    " 0.14 of FCFS's from seeds 0, 1 and 2; the paper says nothing of its seats",
    "chain-like": "Fair is FCFS here, and Carbyne, too: a job has at most one call at a time, and"
    " none runs while one waits",
    "planning": "what runs at clients does not wait, and no order saves any of it; an order by the"
    " true work of jobs (tried apart from this) saves 0.54, 0.33 and 0.06 of FCFS's from seeds 0, 1"
    " and 2; clients post no plans here",
}
NETWORK = (
    "without a network jobs go by the mean duration of their application, with what they wait and"
    " what runs at clients in it, however far they are"
)
UNCERTAINTY = (
    "exploring is worth little here or costs a little: every job's first stages, which tell most,"
    " have to run before all others anyway"
)
OVERHEAD = (
    "the paper: Python on an EPYC 9654; here answers are remembered by evidence, and jobs are asked"
    " for when something has become known of them, not all at every event"
)
FLOOR = "see cut-*: what an order can save is bounded by how long jobs wait"
EPSILON = "differences of a few per cent between points are chance: one seed"
RATIO = "differences of a few per cent between points are chance: one seed"
RATE = "engines are those of 0.9 jobs/s"
COUNT = "one seed beside 300 jobs: chance decides how full the first minutes are"
GITTINS = "the order is nearly the same as by the mean"
BY_TIME = (
    "time at clients takes nothing from others: by time, web search with its pauses comes after"
    " code, which has twice its tokens"
)

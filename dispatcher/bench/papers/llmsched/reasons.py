"""Why measured and claimed numbers differ, as far as it was found out."""

CUT: dict[str, str] = {
    "mixed": "",
    "predefined": "",
    "chain-like": "",
    "planning": "",
}
NETWORK = ""
UNCERTAINTY = ""
OVERHEAD = ""
FLOOR = ""
EPSILON = ""
RATIO = ""
RATE = ""
COUNT = ""
GITTINS = ""
BY_TIME = ""

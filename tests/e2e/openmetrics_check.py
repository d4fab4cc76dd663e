# openmetrics_check.py [FILE]: whether a text is OpenMetrics 1.0, strictly: what of it is wrong, a line each, and status 1.
#   openmetrics_check.py --grows BEFORE AFTER    also, of two scrapes: counters that have fallen, series that have gone
# Read strictly: the grammar of lines and labels, the order of metadata, families in one piece, suffixes by type, units at
# the end of names, values of counters, buckets, doubled series, the end.
import math
import re
import sys

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\Z")
SUFFIXES = {"counter": ["_total", "_created"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum", "_created"],
            "info": ["_info"], "unknown": [""]}
wrong = []


def number(text):
    if text in ("+Inf", "-Inf", "NaN"):
        return float(text)
    if not NUMBER.match(text):
        raise ValueError("no number: " + text)
    return float(text)


def labels_of(text):
    """The labels between the braces, each name once."""
    at, labels = 0, {}
    while at < len(text):
        found = LABEL.match(text, at)
        if not found:
            raise ValueError("no label: " + text[at:])
        if found[1] in labels:
            raise ValueError("the label %s is there twice" % found[1])
        labels[found[1]] = found[2]
        at = found.end()
        if at < len(text):
            if text[at] != "," or at + 1 == len(text):
                raise ValueError("no comma: " + text[at:])
            at += 1
    return labels


def split_sample(line):
    """A sample's name, labels, value. Braces may be in quotes, so the end of the labels is found by their grammar."""
    if "{" not in line.split(" ")[0]:
        name, _, value = line.partition(" ")
        return name, {}, value
    name, _, rest = line.partition("{")
    quoted = re.match(r'((?:[^"}]|"(?:[^"\\]|\\.)*")*)\} ', rest)
    if not quoted:
        raise ValueError("the braces do not end")
    return name, labels_of(quoted[1]), rest[quoted.end():]


class Family:
    def __init__(self, name):
        self.name, self.kind, self.unit, self.help, self.samples = name, None, None, None, []

    def takes(self, sample):
        return any(sample == self.name + suffix for suffix in SUFFIXES[self.kind or "unknown"])

    def check(self):
        if self.unit and not self.name.endswith("_" + self.unit):
            yield "%s does not end in its unit %s" % (self.name, self.unit)
        if self.kind == "counter" and self.name.endswith("_total"):
            yield "the family %s has the suffix of its samples" % self.name
        if self.help is None or self.kind is None:
            yield "%s has no help or no type" % self.name
        if self.kind == "histogram":
            yield from self.check_buckets()

    def check_buckets(self):
        series = {}
        for name, labels, value in self.samples:
            if name.endswith("_bucket"):
                if "le" not in labels:
                    yield "%s: a bucket has no bound" % self.name
                    continue
                rest = tuple(sorted((k, v) for k, v in labels.items() if k != "le"))
                series.setdefault(rest, []).append((number(labels["le"]), value))
        for rest, buckets in series.items():
            if [b for b, _ in buckets] != sorted({b for b, _ in buckets}):
                yield "%s%s: bounds do not grow" % (self.name, rest)
            if buckets[-1][0] != math.inf:
                yield "%s%s: the last bucket is not +Inf" % (self.name, rest)
            if [v for _, v in buckets] != sorted(v for _, v in buckets):
                yield "%s%s: buckets are not cumulative" % (self.name, rest)
        kinds = {name[len(self.name):] for name, _, _ in self.samples}
        if ("_sum" in kinds) != ("_count" in kinds):
            yield "%s: a sum and a count go together" % self.name


def parse(text):
    """{(sample, labels): (value, kind)}; what is wrong goes to the list."""
    families, current, series = {}, None, {}
    if not text.endswith("# EOF\n"):
        wrong.append("the last line is not '# EOF'")
    if "\r" in text:
        wrong.append("carriage returns")
    lines = text.split("\n")
    for at, line in enumerate(lines[:-1], 1):
        try:
            if line == "# EOF":
                if at != len(lines) - 1:
                    raise ValueError("lines behind the end")
                break
            if line.startswith("#"):
                words = line.split(" ", 3)
                if len(words) < 4 or words[0] != "#" or words[1] not in ("HELP", "TYPE", "UNIT"):
                    raise ValueError("neither HELP nor TYPE nor UNIT")
                _, word, name, value = words
                if not NAME.match(name):
                    raise ValueError("no name")
                if current is None or current.name != name:
                    if name in families:
                        raise ValueError("the family is not in one piece")
                    current = families[name] = Family(name)
                if current.samples:
                    raise ValueError("metadata behind samples")
                field = {"HELP": "help", "TYPE": "kind", "UNIT": "unit"}[word]
                if getattr(current, field) is not None:
                    raise ValueError("twice")
                if field == "kind" and value not in SUFFIXES:
                    raise ValueError("no type")
                if field == "help" and re.search(r'(?<!\\)"|\\[^\\n"]', value):
                    raise ValueError("not escaped")
                setattr(current, field, value)
                continue
            name, labels, value = split_sample(line)
            if not NAME.match(name):
                raise ValueError("no name")
            if current is None or not current.takes(name):
                raise ValueError("a sample without its family")
            value = number(value)
            if current.kind in ("counter", "histogram") and not value >= 0:
                raise ValueError("a count that is no count")
            if "le" in labels and not name.endswith("_bucket"):
                raise ValueError("a bound outside a bucket")
            key = name, tuple(sorted(labels.items()))
            if key in series:
                raise ValueError("the series is there twice")
            series[key] = value, current.kind
            current.samples.append((name, labels, value))
        except ValueError as why:
            wrong.append("line %d: %s: %s" % (at, why, line))
    taken = {}
    for family in families.values():
        wrong.extend(family.check())
        for suffix in SUFFIXES[family.kind or "unknown"]:
            if taken.setdefault(family.name + suffix, family.name) != family.name:
                wrong.append("%s and %s have a sample's name in common" % (family.name, taken[family.name + suffix]))
    return series


def read(path):
    with open(path, "rb") as file:
        return file.read().decode("utf-8")


grows = sys.argv[1:2] == ["--grows"]
files = sys.argv[2:] if grows else sys.argv[1:]
all_series = [parse(read(path)) for path in files]
if grows:
    before, after = all_series
    for key, (value, kind) in before.items():
        if key not in after:
            wrong.append("%s%s has gone" % key)
        elif kind != "gauge" and after[key][0] < value:
            wrong.append("%s%s has fallen from %g to %g" % (*key, value, after[key][0]))
for line in wrong[:30]:
    print(line)
sys.exit(1 if wrong else 0)

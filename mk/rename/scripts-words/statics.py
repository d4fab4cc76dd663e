#!/usr/bin/env python3
"""statics.py TABLE [-v]: renames static functions, file by file, as TABLE says (FILE<tab>OLD<tab>NEW a line).

Only tokens that mean the function change: calls, references, the definition; not a field, a variable, a label, a tag or a
type of the same name. A file that was moved or renamed is looked for in its component. A row that fits no more is
reported and left out. In a comment `name()` and names with an underscore change.
"""
import collections, os, re, sys
from clex import *

KEYWORDS = set('return case goto else sizeof do if while for switch typedef in likely unlikely'.split())
NOT_TYPES = set('return case else sizeof do'.split())


def component(path):
    parts = path.split('/')
    return '/'.join(parts[:2]) if parts[0] in ('components', 'tools') else parts[0]


def is_test(path):
    return '/test/' in path


def find_file(path, old, texts, defined):
    if path in texts:
        return path
    base = os.path.basename(path)
    same = [f for f in texts if os.path.basename(f) == base and component(f) == component(path) and is_test(f) == is_test(path)]
    if len(same) == 1:
        return same[0]
    stem = os.path.splitext(base)[0]
    near = [f for f in defined.get(old, ()) if component(f) == component(path) and is_test(f) == is_test(path)]
    near = [f for f in near if stem.endswith(os.path.splitext(os.path.basename(f))[0].lstrip('_')) or
            os.path.splitext(os.path.basename(f))[0].endswith(stem)] or near
    return near[0] if len(near) == 1 else None


def includers(path, texts, graph):
    found, todo = {path}, [path]
    while todo:
        for user in graph.get(todo.pop(), ()):
            if user not in found:
                found.add(user)
                todo.append(user)
    return found - {path}


def include_graph(texts):
    by_name = collections.defaultdict(list)
    for f in texts:
        by_name[os.path.basename(f)].append(f)
    graph = collections.defaultdict(set)
    for f, text in texts.items():
        for inc in re.findall(r'(?m)^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', text):
            real = os.path.normpath(os.path.join(os.path.dirname(f), inc))
            if real in texts:
                graph[real].add(f)
            else:
                for g in by_name[os.path.basename(inc)]:
                    if component(g) == component(f):
                        graph[g].add(f)
    return graph


def rename(text, names, notes, path):
    """names: old -> new."""
    if re.search(r'(?m)^#include "\.\./\w+\.c"', text):  # a test gave a static function of an included source a name of its own
        lines = text.split('\n')
        gone = [l for l in lines if re.match(r'#\s*(define|undef)\s+(\w+)(\s+\w+)?$', l) and l.split()[1] in names]
        for l in gone:
            if l.split()[0] == '#define' and len(l.split()) == 3:
                text = re.sub(r'\b%s\b' % l.split()[2], names[l.split()[1]], text)
                gone_now = '#define %s %s' % (l.split()[1], names[l.split()[1]])
                text = text.replace(gone_now + '\n', '', 1)
            else:
                text = text.replace(l + '\n', '', 1)
    tokens = lex(text)
    code = [i for i, (k, t) in enumerate(tokens) if k not in ('cm', 'nl') and not t.isspace()]
    pos = {i: n for n, i in enumerate(code)}
    out = [t for _, t in tokens]

    def at(n):
        return tokens[code[n]][1] if 0 <= n < len(code) else ''

    def kind(n):
        return tokens[code[n]][0] if 0 <= n < len(code) else ''

    # regions: each top-level {...} with what stands before it since the last ; or } at depth 0
    region, regions, depth, start = [0] * len(code), [None], 0, 0
    for n in range(len(code)):
        t = at(n)
        if t == '{':
            if depth == 0:
                regions.append((start, n))
            depth += 1
        region[n] = len(regions) - 1 if depth > 0 else -1
        if t == '}':
            depth = max(0, depth - 1)
            if depth == 0:
                first = regions[-1][0]
                for k in range(first, n + 1):
                    region[k] = len(regions) - 1
                start = n + 1
        elif t == ';' and depth == 0:
            start = n + 1
    is_function = {r: regions[r] is not None and at(regions[r][1] - 1) == ')' for r in range(1, len(regions))}
    for r in range(1, len(regions)):  # attributes or a parameter list of K&R do not occur; a macro may stand before {
        s, b = regions[r]
        is_function[r] = is_function[r] or any(at(k) == '(' for k in range(s, b)) and '=' not in [at(k) for k in range(s, b)]

    def inside_include(n):
        k = n - 1
        while n - k < 12 and at(k) not in ('>', ';', '}'):
            if at(k) == 'include' and at(k - 1) == '#':
                return True
            k -= 1
        return False

    def call_around(n):
        k, d = n - 1, 0
        while k >= 0 and at(k) not in (';', '{', '}'):
            d += (at(k) == ')') - (at(k) == '(')
            if d < 0:
                return at(k - 1)
            k -= 1
        return ''

    def declares(n):
        before, after = at(n - 1), at(n + 1)
        if before == '*' and after == ')' and at(n - 2) == '(' and at(n + 2) == '(':
            return True
        if after == '(':
            return False
        if kind(n - 1) == 'id' and before not in NOT_TYPES and not (before in KEYWORDS):
            return after in (';', ',', '=', '[', ')', ':')
        if before == '*' and after in (';', ',', '=', '[', ')'):
            k = n - 1
            while at(k) == '*':
                k -= 1
            return kind(k) == 'id' and at(k) not in NOT_TYPES
        if before == ',' and after in (',', ';', '=', '['):  # int a, name;
            k, d = n - 1, 0
            while k >= 0 and not (d == 0 and at(k) in (';', '{', '}')):
                d += (at(k) in ')]') - (at(k) in '([')
                if d < 0:
                    return False
                k -= 1
            if at(k + 1) == '_Alignas':
                k += 1
                while at(k) != ')':
                    k += 1
            return kind(k + 1) == 'id' and (kind(k + 2) == 'id' or at(k + 2) == '*') and at(k + 1) not in KEYWORDS
        return False

    shadowed = collections.defaultdict(set)
    uses = collections.defaultdict(list)
    for n in range(len(code)):
        if kind(n) == 'id' and at(n) in names:
            uses[at(n)].append(n)
            if declares(n) and region[n] > 0 and is_function.get(region[n]):
                shadowed[at(n)].add(region[n])
    done = 0
    for old, places in uses.items():
        for n in places:
            before, after = at(n - 1), at(n + 1)
            if before == '.' or (before == '>' and at(n - 2) == '-'):
                continue
            if after in ('.', '/', '>') and inside_include(n):
                continue
            if after == ')' and before == ',' and re.match(r'(LIST|TAILQ|SLIST|STAILQ|CK)_|offsetof$|container_of$', call_around(n)):
                continue
            if before in ('struct', 'enum', 'union', 'goto'):
                continue
            if after == ':' and before in (';', '{', '}'):
                continue
            if region[n] in shadowed[old]:
                if after == '(' and path_defines(n, at, kind):
                    pass
                else:
                    continue
            if declares(n):
                continue
            if after != '(':
                notes.append((path, old, names[old], ' '.join(at(k) for k in range(n - 4, n + 4))))
            out[code[n]] = names[old]
            done += 1
    for i, (k, t) in enumerate(tokens):
        if k == 'cm':
            def swap(m):
                w = m.group(1)
                if w in names and (m.group(2) or '_' in w):
                    return names[w] + (m.group(2) or '')
                return m.group()
            out[i] = re.sub(r'(?<![\w.>/])([A-Za-z_]\w*)\b(\(\))?(?![\w.]*\.[ch]\b)', swap, t)
    return ''.join(out), done


def path_defines(n, at, kind):
    """The definition itself: TYPE name(...) {, with a parameter of its own name."""
    return kind(n - 1) == 'id' or at(n - 1) == '*' or at(n - 1) == ')'


def main():
    verbose = '-v' in sys.argv
    rows = []
    for line in open(sys.argv[1]):
        if line.strip() and not line.startswith('#'):
            rows.append(line.rstrip('\n').split('\t'))
    texts = {f: read(f) for f in tracked('*.c', '*.h')}
    everywhere = collections.Counter()
    for t in texts.values():
        everywhere.update(set(re.findall(r'[A-Za-z_]\w*', t)))
    defined = collections.defaultdict(list)
    own = {}
    for f, t in texts.items():
        own[f] = {n for n, _, _ in statics(t)}
        for n in own[f]:
            defined[n].append(f)
    graph = include_graph(texts)
    todo, left, notes = collections.defaultdict(dict), [], []
    for path, old, new in rows:
        f = find_file(path, old, texts, defined)
        if f is None:
            left.append((path, old, new, 'no such file'))
        elif old not in own[f]:
            left.append((path, old, new, 'already' if new in own[f] else 'no such static function'))
        elif everywhere[new]:
            left.append((path, old, new, 'the new name is taken'))
        else:
            todo[f][old] = new
            everywhere[new] += 1
    renames = collections.defaultdict(dict)
    for f, names in todo.items():
        renames[f].update(names)
    for f, names in todo.items():
        for user in includers(f, texts, graph):
            for old, new in names.items():
                if old not in own[user] and old not in todo.get(user, {}):
                    renames[user].setdefault(old, new)
    total = 0
    for f, names in renames.items():
        text, done = rename(texts[f], names, notes, f)
        total += done
        if text != texts[f]:
            write(f, text)
    if verbose:
        for note in notes:
            print('reference: %s: %s -> %s: %s' % note)
    for row in left:
        print('left: %s: %s -> %s: %s' % row)
    print(f'{sum(map(len, todo.values()))} functions renamed, {total} places, {len(left)} rows left')


main()

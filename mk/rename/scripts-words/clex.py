"""A small lexer for C, enough to rename by token: comments, literals, identifiers, the rest one character each."""
import re, subprocess, os

TOKEN = re.compile(r'''(?P<cm>/\*.*?\*/|//[^\n]*)|(?P<st>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?P<id>[A-Za-z_]\w*)|(?P<num>\d[\w.]*)|(?P<o>.)|(?P<nl>\n)''', re.S)


def lex(text):
    return [(m.lastgroup, m.group()) for m in TOKEN.finditer(text)]


def tracked(*patterns):
    return [f for f in subprocess.check_output(['git', 'ls-files', *patterns], text=True).splitlines() if os.path.isfile(f) and not os.path.islink(f)]


def read(path):
    with open(path, encoding='utf-8', errors='surrogateescape', newline='') as f:
        return f.read()


def write(path, text):
    with open(path, 'w', encoding='utf-8', errors='surrogateescape', newline='') as f:
        f.write(text)


def blanked(text):
    """The text with comments and literals as spaces."""
    return ''.join(re.sub(r'[^\n]', ' ', t) if k in ('cm', 'st') else t for k, t in lex(text))


def statics(text):
    """(name, is_definition, line) of each static function of the file."""
    b, found = blanked(text), []
    for m in re.finditer(r'(?m)^(?:[A-Z_]+\s+)?static\b', b):
        depth, j = 0, m.end()
        while j < len(b):
            c = b[j]
            if c == '(':
                depth += 1
            elif c == ')':
                depth -= 1
            elif depth == 0 and c in '{;=':
                break
            j += 1
        if j >= len(b) or b[j] == '=':
            continue
        head = re.sub(r'__attribute__\s*\(\(.*?\)\)\)?', '', b[m.start():j])
        head = re.sub(r'\b(__printf|_Alignas|_Static_assert)\s*\([^()]*\)', '', head)
        name = re.search(r'\b([A-Za-z_]\w*)\s*\(', head)
        if name and not head[name.end():].lstrip().startswith('*'):
            found.append((name.group(1), b[j] == '{', text.count('\n', 0, m.start()) + 1))
    return found

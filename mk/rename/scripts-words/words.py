#!/usr/bin/env python3
"""words.py --list | GROUP: renames the private words of one group (groups.py) to the field's terms: files, identifiers,
comments, documents, scripts. Prints what it could not do, and the drawn comment lines that it touched (to be looked at)."""
import os, re, subprocess, sys
from clex import *
from groups import GROUPS

SPACE = r'(?:\s+(?:\*\s+|#\s+)?)'
IDENT = re.compile(r'[A-Za-z_]\w*')
DRAWN = re.compile(r'[─│┌┐└┘├┤┬┴┼═║►◄▲▼]|--+>|<--+|\S {3,}\S|\| ')


def cased(old, new):
    if old.isupper() and len(old) > 1:
        return new.upper()
    if old[:1].isupper():
        return new[:1].upper() + new[1:]
    return new


class Group:
    def __init__(self, g):
        self.name, self.g = g['name'], g
        self.ids = [(re.compile(s), m) for s, m in g.get('ids', [])]
        self.parts = [(re.compile(s), re.compile('^(?:%s)$' % p, re.I), new, re.compile('^(?:%s)$' % keep) if keep else None)
                      for s, p, new, keep in g.get('parts', [])]
        self.code = [(re.compile(s), re.compile(p), new) for s, p, new in g.get('code', [])]
        self.prose = [(re.compile(s), re.compile(r'(?<![\w`])' + p.replace(' ', SPACE) + r'(?![\w`])'), new) for s, p, new in g.get('prose', [])]
        self.strings = [(re.compile(s), re.compile(p), new) for s, p, new in g.get('strings', [])]
        self.moves = g.get('moves', [])
        self.used = set()

    def identifier(self, path, word):
        for scope, table in self.ids:
            if word in table and scope.search(path):
                self.used.add(word)
                return table[word]
        if not self.parts:
            return word
        pieces = word.split('_')
        for scope, part, new, keep in self.parts:
            if not scope.search(path) or (keep and keep.match(word)):
                continue
            for i, p in enumerate(pieces):
                if part.match(p):
                    pieces[i] = p.upper() and cased(p, new)
        return '_'.join(pieces)

    def text(self, path, text, drawn, spot=None):
        """Prose: identifiers in it, then words."""
        def one(m):
            w = m.group()
            before, after = text[m.start() - 1:m.start()], text[m.end():m.end() + 2]
            if '_' in w or after[:1] == '(' or after == '->' or (before == '`' and after[:1] == '`') or text[m.start() - 2:m.start()] == '->':
                return self.identifier(path, w)
            return w
        out = replace_aligned(IDENT, one, text)
        for scope, pattern, new in self.prose:
            if scope.search(path):
                def word(m, new=new):
                    done = m.expand(new)
                    gap = re.search(r'\s*\n\s*(?:\*\s+|#\s+)?', m.group())
                    if gap:
                        done = done.replace(' ', gap.group(), 1) if ' ' in done else done + gap.group()
                    return done
                out = replace_aligned(pattern, word, out)
        if out != text:
            out = re.sub(r"(?<=[a-z*`'])%s\((minisocks?('s)?|ring_ctxs?|ring contexts?|fork_shared|fork_rpc|fork_owner|fork_queue|fdstore|busy pollers?|busy_poller|iov_iter|reinject|proto_ops|housekeeping|deferred)\)" % SPACE, '', out)
        if out != text and path.endswith(('.c', '.h')):
            out = fold_drawn(out)
        if out != text:
            a, b = text.split('\n'), out.split('\n')
            if True:
                for x, y in zip(a, b + [''] * len(a)):
                    if x != y and DRAWN.search(re.sub(r'^\s*(/?\*|#)\s*', '', y.strip())) and not path.endswith('.md') or (x != y and re.search('[─│]', y)):
                        drawn.append((path, y))
        return out


def replace_aligned(pattern, change, text):
    """Replaces, and keeps columns behind the place where they are if a gap or a line is there to take it from."""
    text_now, at = text, 0
    while True:
        m = pattern.search(text_now, at)
        if not m:
            return text_now
        new = change(m)
        old = m.group()
        if new == old:
            at = max(m.end(), at + 1)
            continue
        tail_end = text_now.find('\n', m.end())
        tail_end = len(text_now) if tail_end < 0 else tail_end
        tail = text_now[m.end():tail_end]
        delta = len(new) - len(old)
        if '\n' not in new and delta:
            run = re.search(r'(?<!^)(?<=\S)( {2,})(?=\S)|^( {2,})(?=\S)|─{3,}|-{3,}(?=>)', tail)
            if run:
                n = len(run.group())
                least = 2 if run.group()[0] == ' ' else 1
                width = max(least, n - delta)
                tail = tail[:run.start()] + run.group()[0] * width + tail[run.end():]
        text_now = text_now[:m.start()] + new + tail + text_now[tail_end:]
        at = m.start() + len(new)


def fold_drawn(text):
    """A row of a table in a comment that has become too long goes on below, in its last column."""
    lines, i = text.split('\n'), 0
    while i < len(lines):
        line = lines[i]
        wide = len(line.expandtabs(8))
        gaps = [m.end() for m in re.finditer(r'(?<=\S) {2,}(?=\S)', line) if line[:m.start()].strip() not in ('*', '* -')]
        if wide > 120 and gaps and line.lstrip().startswith('*') and not re.search('[─═│]', line):
            column, cut = gaps[-1], line.rfind(' ', 0, 120)
            if cut > column:
                rest, lines[i] = line[cut + 1:], line[:cut]
                below = lines[i + 1] if i + 1 < len(lines) else ''
                if below[:column].strip() in ('*', '') and below[column:column + 1].strip() and not below[column:].startswith('/'):
                    lines[i + 1] = below[:column] + rest + ' ' + below[column:]
                else:
                    lines.insert(i + 1, ' *' + ' ' * (column - 2) + rest)
        i += 1
    return '\n'.join(lines)


def fold_comments(text):
    """Prose in comments that has become longer than 120 columns flows into the next line; a line of its own becomes a block."""
    lines, i = text.split('\n'), 0
    while i < len(lines):
        line = lines[i]
        if len(line.expandtabs(8)) > 120:
            one = re.match(r'^(\s*)/\* (.*) \*/$', line)
            more = re.match(r'^(\s*) \*(\s+)\S', line)
            if one:
                lines[i:i + 1] = [one.group(1) + '/*', one.group(1) + ' * ' + one.group(2), one.group(1) + ' */']
            elif more and not re.search('[─═│]|\\S {3,}\\S', line):
                room = 120 - (len(line.expandtabs(8)) - len(line))
                cut = line.rfind(' ', 0, room + 1)
                head = more.group(1) + ' *' + more.group(2)
                if cut > len(head):
                    rest, lines[i] = line[cut + 1:], line[:cut]
                    below = lines[i + 1] if i + 1 < len(lines) else ''
                    if re.match(re.escape(head.rstrip(' ')) + r' {%d}[^-\s*/]' % len(more.group(2)), below) and not re.search('[─═│]|\\S {3,}\\S', below):
                        lines[i + 1] = head + rest + ' ' + below[len(head):]
                    else:
                        lines.insert(i + 1, head + rest)
        i += 1
    return '\n'.join(lines)


def move_files(group, report):
    names = {}
    files = tracked()
    for scope, old, new in group.moves:
        found = [f for f in files if os.path.basename(f) == old and re.search(scope, f)]
        if not found:
            report.append('no file %s (%s)' % (old, scope))
        for f in found:
            to = os.path.join(os.path.dirname(f), new)
            if os.path.exists(to):
                report.append('%s is there already, %s stays' % (to, f))
                continue
            subprocess.check_call(['git', 'mv', f, to])
            names.setdefault(old, []).append((scope, new))
    return names


def file_names(names, path, text):
    """Mentions of the files that moved: includes, comments, Makefiles, documents."""
    for old, targets in names.items():
        stem, ext = os.path.splitext(old)
        for scope, new in targets:
            nstem, next_ = os.path.splitext(new)
            same = re.search(scope, path)
            comp = re.match(r'\^?(components/\w+|tests/\w+|interpose)', scope.replace('(', '').replace('\\', ''))
            unique = len(set(n for _, n in targets)) == 1
            if same or unique or (comp and comp.group(1).split('/')[-1] + '/' + old in text):
                if same or unique:
                    text = replace_aligned(re.compile(r'(?<![\w-])%s(?!\w)' % re.escape(old)), lambda m: new, text)
                else:
                    text = text.replace(comp.group(1).split('/')[-1] + '/' + old, comp.group(1).split('/')[-1] + '/' + new)
                if ext == '.sh':
                    text = re.sub(r'(?<![\w-])%s(?=\.log|\b(?=["\' )]|$))' % re.escape('e2e/' + stem), 'e2e/' + nstem, text)
    return text


def run(group):
    report, drawn = [], []
    names = move_files(group, report)
    for path in tracked():
        if 'corpus' in path or path.startswith('scripts-words/'):
            continue
        try:
            text = read(path)
        except (OSError, UnicodeError):
            continue
        if '\0' in text:
            continue
        old = text
        text = file_names(names, path, text)
        if path.endswith(('.c', '.h')):
            out = []
            for k, t in lex(text):
                if k == 'id':
                    t = group.identifier(path, t)
                elif k == 'cm':
                    t = group.text(path, t, drawn)
                elif k == 'st':
                    for scope, pattern, new in group.strings:
                        if scope.search(path):
                            t = pattern.sub(new, t)
                    if t.startswith('"'):
                        t = IDENT.sub(lambda m: group.identifier(path, m.group()) if '_' in m.group() and not m.group().startswith('_') else m.group(), t)
                out.append(t)
            text = ''.join(out)
            for scope, pattern, new in group.code:
                if scope.search(path):
                    text = pattern.sub(new, text)
            if text != old:
                text = fold_comments(text)
        elif path.endswith('.md'):
            text = group.text(path, text, drawn)
        elif re.search(r'\.(sh|py|mk|txt)$|(^|/)Makefile$|^mk/|^tests/|^\.ci/', path):
            lines = text.split('\n')
            for i, line in enumerate(lines):
                code, hash_, comment = line.partition('# ') if not line.startswith('#!') else (line, '', '')
                code = IDENT.sub(lambda m: group.identifier(path, m.group()) if '_' in m.group() else m.group(), code)
                for scope, pattern, new in group.strings + group.code:
                    if scope.search(path):
                        code = pattern.sub(new, code)
                comment = group.text(path, comment, drawn) if comment else comment
                def quoted(m):
                    s = m.group()
                    for scope, pattern, new in group.prose:
                        if scope.search(path):
                            s = pattern.sub(new, s)
                    return s
                code = re.sub(r'(?:check|check_eq|check_num|skip|say) "[^"]*"|"[^"$]* [^"$]*"', quoted, code)
                lines[i] = code + hash_ + comment
            text = '\n'.join(lines)
        for was, becomes in group.g.get('articles', []):
            text = re.sub(was, becomes, text)
        if text != old:
            write(path, text)
    for table_scope, table in group.ids:
        for word in table:
            if word not in group.used:
                report.append('not found: %s (%s)' % (word, table_scope.pattern))
    for line in report:
        print('%s: %s' % (group.name, line))
    for path, line in drawn:
        print('drawn: %s: %s' % (path, line.rstrip()))


def main():
    if sys.argv[1] == '--list':
        for g in GROUPS:
            print(g['name'])
        return
    if sys.argv[1] == '--message':
        print(next(g for g in GROUPS if g['name'] == sys.argv[2])['message'])
        return
    run(Group(next(g for g in GROUPS if g['name'] == sys.argv[1])))


main()

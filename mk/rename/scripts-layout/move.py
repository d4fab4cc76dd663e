#!/usr/bin/env python3
"""move.py [--guess]: the files of moves.tsv go to their new places, in the git tree at hand. Once more: what is left.

What follows them: #include lines; guards of headers; the name at a file's head; names of files in comments, scripts and
pages. What the table does not have is said on stderr, and stays. --guess: a file that is not in the table goes where
its prefix points, with a line that says so.
"""
import os, re, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
COMPONENTS = ('nic', 'tcp', 'sock')
OPTIONAL = ('load.c', 'load.h', 'inherited.c', 'taken_priv.h', 'vmad_closer.c', 'vmad_closer.h', 'vmad_folder.c')
GUESS = [(r'nic/nic_wire_(.*)', 'nic/wire/'), (r'nic/wire_(.*)', 'nic/wire/'), (r'nic/nic_xdp_(.*)', 'nic/client/'),
         (r'nic/xdp_(.*)', 'nic/xdp/'), (r'nic/owner_(.*)', 'nic/owner/'), (r'nic/vmad_(.*)', 'nic/vmad/'),
         (r'nic/fdstore_(.*)', 'nic/owner/fdstore_'), (r'nic/nic_(.*)', 'nic/'), (r'tcp/cc_(.*)', 'tcp/cc/'),
         (r'tcp/lwip_(.*)', 'tcp/lwip/'), (r'sock/engine_(.*)', 'sock/engine/'), (r'sock/rail_(.*)', 'sock/engine/rail_'),
         (r'sock/(.*_care\..*)', 'sock/engine/'), (r'sock/(wait.*)', 'sock/wait/'), (r'sock/(internal.*)', 'sock/engine/')]


def git(*args):
    return subprocess.run(('git',) + args, check=True, capture_output=True, text=True).stdout


def say(text):
    print('move: ' + text, file=sys.stderr)


def tracked():
    return [f for f in git('ls-files', '-z').split('\0') if f and not f.startswith('scripts-layout/')]


def read(path):
    with open(path, encoding='utf-8', errors='surrogateescape') as f:
        return f.read()


def write(path, text):
    with open(path, 'w', encoding='utf-8', errors='surrogateescape') as f:
        f.write(text)


def table(files):
    """What is to move {old: new}, and every name that a text may still have for a file {name: new}."""
    moves, names, known = {}, {}, set()
    for line in read(os.path.join(HERE, 'moves.tsv')).splitlines():
        if not line or line.startswith('#'):
            continue
        olds, new = line.split('\t')
        olds = ['components/' + o for o in olds.split('|')]
        known.update(olds)
        if new == '-':
            continue
        new = 'components/' + new
        known.add(new)
        there = [o for o in olds if o in files]
        if len(there) > 1:
            say('TWO NAMES OF ONE FILE: ' + ' '.join(there))
        if not there and new not in files:
            optional = os.path.basename(olds[0]) in OPTIONAL
            if not optional:
                say('NOT THERE: %s (renamed? gone?)' % '|'.join(olds))
            continue
        for o in there[:1]:
            moves[o] = new
        for o in olds:
            if o not in files or o in there[:1]:
                names[o] = new
    for f in sorted(files):
        m = re.fullmatch(r'components/((?:%s)/[^/]+\.[ch])' % '|'.join(COMPONENTS), f)
        if not m or f in known:
            continue
        for pattern, folder in GUESS:
            g = re.fullmatch(pattern, m[1])
            if not g:
                continue
            new = 'components/' + folder + g[1]
            if new in files or new in moves.values():
                say('NOT IN THE TABLE, and its place is taken: %s -> %s' % (f, new))
            elif '--guess' in sys.argv:
                say('NOT IN THE TABLE: %s goes to %s by its prefix' % (f, new))
                moves[f] = names[f] = new
            else:
                say('NOT IN THE TABLE: %s stays (its prefix says %s)' % (f, new))
            break
        else:
            say('NOT IN THE TABLE: %s stays' % f)
    return moves, names


def component_of(path):
    m = re.match(r'components/([^/]+)/', path)
    return m[1] if m else None


def includes(text, old_path, new_path, files, names, lost):
    """Rewrites #include "..." lines of the file that was old_path and is new_path."""
    def one(m):
        head, name, tail = m.groups()
        old = os.path.normpath(os.path.join(os.path.dirname(old_path), name))
        if old not in files and old not in names:
            via = os.path.join('components/tcp', name)  # lwIP's hooks were found by -I
            if old_path.startswith('components/tcp/lwip/') and (via in files or via in names):
                old = via
        if old not in files and old not in names:
            if old_path.startswith('components/') and not name.startswith('lwip/'):
                lost.append('%s: "%s"' % (new_path, name))
            return m[0]
        new = names.get(old, old)
        return head + os.path.relpath(new, os.path.dirname(new_path) or '.') + tail
    text = re.sub(r'(?m)^([ \t]*#[ \t]*include[ \t]*")([^"\n]+)(")', one, text)
    return text.replace('#include <xdp_steer.skel.h>', '#include <xdp/steer.skel.h>')


def guard(text, new_path):
    m = re.search(r'(?m)^#ifndef (\w+_H)\n#define \1$', text)
    if not m:
        say('no guard in ' + new_path)
        return text
    name = 'VMA_' + re.sub(r'\W', '_', new_path[len('components/'):]).upper()
    return re.sub(r'\b%s\b' % m[1], name, text)


def head(text, old_path, new_path):
    """/* OLD - ..., with the lines that are indented behind it."""
    stem = lambda p: re.sub(r'(\.bpf)?\.[ch]$', '', os.path.basename(p))
    old, new = stem(old_path), stem(new_path)
    end = text.find('*/')
    if old == new or not text.startswith('/*') or end < 0:
        return text
    comment, rest = text[:end], text[end:]
    m = re.match(r'/\*\n? ?\*? ?(%s)((?:\.[ch])?) +- ' % re.escape(old), comment)
    if not m:
        prefix = old.split('_')[0]
        m = re.match(r'/\*\n? ?\*? ?(%s_\w+)((?:\.[ch])?) +- ' % re.escape(prefix), comment) if '_' in old else None
        if not m:
            say('no name at the head of %s, left as it is: %r' % (new_path, comment[:60]))
            return text
        old = m[1]
    lines = comment.split('\n')
    first = 0 if '\n' not in m[0] else 1
    width = m[0].split('\n')[-1]
    lines[first] = lines[first].replace(old, new, 1)
    indent = len(width) - 2
    for i in range(first + 1, len(lines)):
        if not re.match(r' \*' + ' ' * indent + r'\S', lines[i]):
            break
        lines[i] = ' *' + ' ' * (indent - len(old) + len(new)) + lines[i][2 + indent:]
    return '\n'.join(lines) + rest


def mentions(text, old_path, new_path, everything, names, unclear):
    """Names of files that have moved: as seen from the same folder without it, else below the component."""
    by_base = {}
    for old, new in names.items():
        by_base.setdefault(os.path.basename(old), []).append(old)
    stems = sorted({re.sub(r'\.[ch]$', '', b) for b in by_base}, key=len, reverse=True)
    pattern = re.compile(r'(?<![\w.*-])((?:[\w.$(){}-]+/|\.\./)*)(%s)\.([cho])(?![\w])' %
                         '|'.join(re.escape(s) for s in stems))
    mine = component_of(old_path)

    def one(m):
        if re.match(r'[ \t]*#[ \t]*include', m.string):
            return m[0]
        prefix, stem, ext = m.groups()
        base = stem + '.' + ('c' if ext == 'o' else ext)
        if prefix:
            p = re.match(r'(.*?)(components/)?(nic|tcp|sock)/$', prefix)
            if not p:
                return m[0]
            old = 'components/%s/%s' % (p[3], base)
            if old not in names:
                return m[0]
            new = names[old]
            return prefix + re.sub(r'c$', 'o', new.split('/', 2)[2]) if ext == 'o' else prefix + new.split('/', 2)[2]
        if not mine and os.path.join(os.path.dirname(old_path), base) in everything:
            return m[0]
        if mine and 'components/%s/%s' % (mine, base) in everything:
            old = 'components/%s/%s' % (mine, base)
        elif mine and os.path.join(os.path.dirname(old_path), base) in everything:
            return m[0]
        else:
            owners = [f for f in everything if os.path.basename(f) == base and '/test/' not in f]
            if not owners:
                owners = [o for o in by_base.get(base, [])]
            if len(owners) != 1:
                unclear.append('%s: %s (%s)' % (new_path, base, ' '.join(owners)))
                return m[0]
            old = owners[0]
        if old not in names:
            return m[0]
        new = names[old]
        shown = os.path.basename(new) if os.path.dirname(new) == os.path.dirname(new_path) else new.split('/', 2)[2]
        return re.sub(r'c$', 'o', shown) if ext == 'o' else shown
    out = []
    for line in text.split('\n'):
        for m in reversed(list(pattern.finditer(line))):  # what stands in columns behind a name stays in them
            shown = one(m)
            rest = line[m.end():]
            grown = len(shown) - len(m[0])
            gap = re.search(r' {2,}(?=\S)|-{8,}', rest)
            if grown and gap and len(gap[0]) - grown >= 1:
                rest = rest[:gap.start()] + gap[0][0] * (len(gap[0]) - grown) + rest[gap.end():]
            line = line[:m.start()] + shown + rest
        out.append(line)
    return '\n'.join(out)


def main():
    os.chdir(git('rev-parse', '--show-toplevel').strip())
    files = set(tracked())
    moves, names = table(files)
    everything = files | set(names)
    new_of = lambda f: moves.get(f, f)
    lost, unclear = [], []
    texts = {}
    for f in sorted(files):
        if os.path.islink(f) or re.search(r'/corpus/|\.(png|svg|pcap)$', f) or f.startswith('mk/sources.sha256'):
            continue
        text = was = read(f)
        if '\0' in text:
            continue
        if f.endswith(('.c', '.h')):
            text = includes(text, f, new_of(f), files, names, lost)
        if f in moves:
            if f.endswith('.h'):
                text = guard(text, moves[f])
            text = head(text, f, moves[f])
        if not (f.endswith('/README.md') and '`FOLDERS`' in text):  # its table names files by their folder's row
            text = mentions(text, f, new_of(f), everything, names, unclear)
        if text != was:
            texts[f] = text
    for old, new in sorted(moves.items()):
        os.makedirs(os.path.dirname(new), exist_ok=True)
        git('mv', old, new)
    for f, text in texts.items():
        write(new_of(f), text)
    for l in lost:
        say('INCLUDE NOT FOUND: ' + l)
    for u in sorted(set(unclear)):
        say('unclear, left: ' + u)
    print('move: %d files moved, %d changed' % (len(moves), len(texts)))


main()

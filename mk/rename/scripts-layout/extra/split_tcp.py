#!/usr/bin/env python3
"""split_tcp.py: after run.sh. tcp_priv.h is split as the folders are: loss/loss.h, timer/timer.h, rx/window.h, rx/input.h
and tx/output.h have what the rest of tcp calls there, and the parts of a connection that belong there.

struct tcp_window (rx/window.h) gets the fields of window.c out of struct vma_tcp_conn: conn->X becomes conn->window.X.
Fields that nothing reads go away. What is not found is said, and left.
"""
import os, re, subprocess, sys

WINDOW = '''delack_due_ns rcv_space_copied_seen rcv_space_ns rcv_rtt_ns rcv_rtt_ecr rcv_space quick_acks pingpong ack_held
hold_rest hold_failed sacks_held hole hole_acks sacks_waiting sack_left sack_right sack_places ack_ns last_data_in_ns
last_data_out_ns rcv_wup rcv_mss rcv_edge ato_ns'''.split()
DEAD = 'rx_seen push_at ts_recent_age_s'.split()  # read and written nowhere
P = 'components/tcp/tcp_priv.h'


def git(*args):
    return subprocess.run(('git',) + args, check=True, capture_output=True, text=True).stdout


def say(text):
    print('split: ' + text, file=sys.stderr)


def read(path):
    with open(path) as f:
        return f.read()


def write(path, text):
    with open(path, 'w') as f:
        f.write(text)


def cut(text, start, end, what):
    """Without what lies from the match of start to before that of end, and that."""
    a = re.search(start, text, re.S)
    b = re.compile(end, re.S).search(text, a.end()) if a else None
    if not b:
        sys.exit('split: %s not found' % what)
    return text[:a.start()] + text[b.start():], text[a.start():b.start()].strip() + '\n'


def section(text, name):
    """The section of a file: without its title, which is the new header's head; or its comment, if it is long."""
    text, part = cut(text, r'/\*(?:\s*\n \*)? ---- [^\n]*?\b%s\b[^\n]*' % name, r'/\*(?:\s*\n \*)? ---- |#endif\n\Z', name)
    m = re.match(r'/\* ---- ([^\n]*?) ---- \*/\n', part)
    if m:
        return text, part[m.end():].strip() + '\n'
    return text, re.sub(r'^/\*\n \* ---- [^\n]*\n \*\n', '/*\n', part)


def declarations(body):
    """Each declaration of a struct's body with what stands before it and its comment: (before, text, names, after)."""
    out, at = [], 0
    pattern = re.compile(r'((?:\s|/\*.*?\*/)*)((?:[^;/{}]|/(?!\*)|\{[^{}]*\})+;)([ \t]*(?:/\*.*?\*/)?)', re.S)
    while at < len(body):
        m = pattern.match(body, at)
        if not m:
            break
        names = re.findall(r'(\w+)(?:\[[^\]]*\])?(?=\s*[,;])', re.sub(r'\([^)]*\)', '', m[2]))
        out.append((m[1], m[2], names, m[3]))
        at = m.end()
    return out, body[at:]


def main():
    os.chdir(git('rev-parse', '--show-toplevel').strip())
    if os.path.exists('components/tcp/loss/loss.h'):
        return say('has been done')
    text = read(P)

    # ---- the pieces ----
    m = re.search(r'/\*(?:(?!\*/).)*\*/\nstruct tcp_ack \{', text, re.S)
    text, loss = cut(text, re.escape(m[0]), r'struct vma_tcp_conn \{', 'acknowledgements and recovery')
    text, timer = cut(text, r'enum tcp_timer \{', r'(?<=\n)/\*|(?<=\n)struct', 'enum tcp_timer')
    text, recovery_calls = section(text, r'loss/recovery\.c')
    text, timer_calls = section(text, r'timer/timers\.c')
    text, window_calls = section(text, r'rx/window\.c: driver')
    text, io_calls = section(text, r'rx/input\.c, tx/output\.c')

    # ---- input and output ----
    m = re.search(r'/\* Both within lwip_enter[^\n]*\n(void tcp_input_burst\([^;]*;\n)', io_calls)
    if not m:
        sys.exit('split: tcp_input_burst')
    inputs = '/* Within lwip_enter, and the pcb is there. */\n' + m[1]
    output_calls = io_calls[:m.start()] + '/* Within lwip_enter, and the pcb is there. */\n' + io_calls[m.end():]
    output_calls = output_calls.replace('''there. */
/* Feeds lwIP from''', '''there: feeds lwIP from''')
    m = re.search(r'bool tcp_sink\([^;]*;[^\n]*\n', text)
    if m:
        inputs = 'bool tcp_sink(struct vma_flow *flow, struct vma_buf *packet, const struct vma_rx_info *info); /* a flow\'s */\n' + inputs
        text = text[:m.start()] + text[m.end():]
    m = re.search(r'(/\*(?:(?!\*/).)*\*/\n)static inline uint64_t tcp_tx_offset.*?\n\}\n', output_calls, re.S)
    tx_offset = m[0]
    output_calls = output_calls[:m.start()] + output_calls[m.end():]

    # ---- the window's part of a connection ----
    a = text.index('struct vma_tcp_conn {') + len('struct vma_tcp_conn {')
    b = text.index('\n};', a)
    text = text[:a] + re.sub(r'uint64_t last_data_in_ns, last_data_out_ns,\s*last_in_ns; /\*[^*]*\*/',
                             'uint64_t last_data_in_ns, last_data_out_ns; /* keepalive, info, idle restart (RFC 2861 as the kernel) */\n'
                             '\tuint64_t last_in_ns;                        /* keepalive */', text[a:b]) + text[b:]
    b = text.index('\n};', a)
    kept, window, place = [], [], None
    decls, rest = declarations(text[a:b])
    if rest.strip() and not re.fullmatch(r'(\s|/\*.*?\*/)*', rest, re.S):
        sys.exit('split: struct vma_tcp_conn is not understood from %r on' % rest[:80])
    for before, decl, names, after in decls:
        if set(names) & set(DEAD):
            if set(names) - set(DEAD):
                sys.exit('split: ' + decl)
            kept.append(before.rstrip('\t\n ') if '/*' in before else '')
            continue
        if not set(names) & set(WINDOW):
            kept.append(before + decl + after)
            continue
        if set(names) - set(WINDOW):
            sys.exit('split: a declaration of two kinds: ' + decl)
        if '/* rx/window.c */' in before and place is None:
            place = len(kept)
            kept.append('\n\tstruct tcp_window window; /* rx/window.h */')
            before = before.replace('/* rx/window.c */', '')
        comment = re.findall(r'/\*.*?\*/', before, re.S)
        if comment:
            say('a comment before %s goes along: %s' % (names[0], comment[-1][:60]))
        window.append('\t' + ''.join(c + '\n\t' for c in comment) + ' '.join(decl.split()) + after)
    if place is None:
        sys.exit('split: /* rx/window.c */ is not in struct vma_tcp_conn')
    text = text[:a] + ''.join(kept) + rest + text[b:]

    m = re.search(r'static inline void window_data_sent\(struct vma_tcp_conn \*conn\)\n\{.*?\n\}\n', window_calls, re.S)
    data_sent = '''static inline void window_data_sent(struct tcp_window *window, uint64_t now_ns)
{
	if (window->last_data_in_ns != 0 && now_ns - window->last_data_in_ns < window->ato_ns)
		window->pingpong = true;
	window->last_data_out_ns = now_ns;
}
'''
    expected = '''static inline void window_data_sent(struct vma_tcp_conn *conn)
{
	uint64_t now = conn->tcp->now_ns;

	if (conn->last_data_in_ns != 0 && now - conn->last_data_in_ns < conn->ato_ns)
		conn->pingpong = true;
	conn->last_data_out_ns = now;
}
'''
    if m[0] != expected:
        say('window_data_sent HAS CHANGED, look at it')
    window_calls = window_calls.replace(m[0], data_sent)

    # ---- the headers ----
    def header(path, head, includes, forward, body):
        name = 'VMA_' + re.sub(r'\W', '_', path).upper()
        body = re.sub(r'\b%s/(?=\w+\.[ch]\b)' % path.split('/')[1], '', body)
        write('components/' + path, head + '#ifndef %s\n#define %s\n\n' % (name, name) +
              ''.join('#include %s\n' % i if i else '\n' for i in includes) + '\n' +
              ''.join('struct %s;\n' % f for f in forward) + ('\n' if forward else '') + body.strip() + '\n\n#endif\n')

    header('tcp/loss/loss.h', '''/*
 * loss - what a connection knows of what it has sent, and what the rest of tcp tells and asks about it. Driver.
 *
 * recovery.h has what the files of this folder want of each other.
 */
''', ['<stdbool.h>', '<stdint.h>'], ['tcp_seg', 'vma_tcp_conn'], loss + '\n' + recovery_calls)
    header('tcp/timer/timer.h', '''/*
 * timer - the timers of a connection and of a stack, and what sets them. Driver.
 *
 * timers.h has what the files of this folder want of each other.
 */
''', ['<stdint.h>'], ['vma_tcp_conn'], timer + '\n' + timer_calls)
    header('tcp/rx/window.h', '''/*
 * window - how much the peer may send, and when it is told so: receive window, buffer growth, delayed ACKs. Driver, but
 *          for window_wants_update.
 */
''', ['<stdbool.h>', '<stdint.h>'], ['vma_tcp_conn'],
           '/* What window.c notes of a connection. */\nstruct tcp_window {\n' + '\n'.join(window) + '\n};\n\n' + window_calls)
    header('tcp/rx/input.h', '''/* input - what comes for a connection, and how a burst of it is taken in. Driver. */
''', ['<vma/tcp.h>'], [], inputs)
    header('tcp/tx/output.h', '''/* output - what a connection sends, and when. Driver. */
''', ['<stdbool.h>', '<stdint.h>'], ['tcp_seg', 'vma_tcp_conn'], output_calls)
    if '#include <vma/tcp.h>' not in text:
        sys.exit('split: includes')
    text = text.replace('#include "fifo.h"\n', '#include "fifo.h"\n#include "loss/loss.h"\n#include "rx/input.h"\n#include "rx/window.h"\n'
                        '#include "timer/timer.h"\n#include "tx/output.h"\n', 1)
    m = re.search(r'/\* ---- [^\n]*stack\.c: driver ---- \*/\n', text)
    text = text[:m.start()] + tx_offset + '\n' + text[m.start():]
    text = re.sub(r'\n{3,}', '\n\n', text)
    write(P, text)

    # ---- who uses them ----
    fields = re.compile(r'\bconn->(%s)\b' % '|'.join(WINDOW))
    for f in git('ls-files', '-z', '--', 'components/tcp').split('\0'):
        if not f.endswith(('.c', '.h')) or f.endswith('rx/window.h'):
            continue
        was = t = read(f)
        t = fields.sub(r'conn->window.\1', t)
        t = t.replace('window_data_sent(conn)', 'window_data_sent(&conn->window, conn->tcp->now_ns)')
        for name in DEAD:
            if re.search(r'->%s\b' % name, t):
                say('%s: %s IS USED' % (f, name))
        if t != was:
            write(f, t)
    f = 'components/tcp/Makefile'
    write(f, read(f).replace('FOLDERS := .:cc,loss,lwip,rx,timer ', 'FOLDERS := .:cc,loss,lwip,rx,timer,tx '))
    git('add', '-A', '--', 'components/tcp')
    files = [x for x in git('diff', '--cached', '--name-only', '--diff-filter=d', 'HEAD', '--', 'components/tcp').split() if x.endswith(('.c', '.h'))]
    subprocess.run(['clang-format', '-i'] + files, check=True)
    git('add', '-A', '--', 'components/tcp')
    print('split: tcp_priv.h has %d lines, %d fields went to struct tcp_window' % (read(P).count('\n'), len(WINDOW)))


main()

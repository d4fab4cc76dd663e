#!/usr/bin/env python3
"""edits.py: after move.py: make's fragments, lint, tests of the build, two headers that are cut out of others, READMEs.

Every change says so when what it changes is not there; one that has been made already is left alone.
"""
import os, re, subprocess, sys


def git(*args):
    return subprocess.run(('git',) + args, check=True, capture_output=True, text=True).stdout


def say(text):
    print('edits: ' + text, file=sys.stderr)


def read(path):
    with open(path) as f:
        return f.read()


def write(path, text):
    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
    with open(path, 'w') as f:
        f.write(text)


def change(path, old, new, done=None):
    """old, exactly once, becomes new; `done`: a text by which one sees that it has been."""
    if not os.path.exists(path):
        return say('%s: NOT THERE' % path)
    text = read(path)
    if (done or new) in text:
        return
    if text.count(old) != 1:
        return say('%s: %d TIMES, to be changed by hand: %r' % (path, text.count(old), old[:90]))
    write(path, text.replace(old, new))


def change_re(path, pattern, new, done):
    text = read(path)
    if done in text:
        return
    text, n = re.subn(pattern, lambda m: new, text)
    if n != 1:
        return say('%s: %d TIMES, to be changed by hand: %s' % (path, n, pattern[:90]))
    write(path, text)


def c_files(*under):
    return [f for f in git('ls-files', '-z', '--cached', '--others', '--exclude-standard', '--', *under).split('\0')
            if f.endswith(('.c', '.h')) and os.path.exists(f)]


# ---- make ----

def make():
    f = 'mk/component.mk'
    change(f, '''#   include $(VMA_ROOT)/mk/component.mk
#
''', '''#   FOLDERS := wire xdp client:xdp            those that have sources, and whose headers each may include besides
#   include $(VMA_ROOT)/mk/component.mk
#
''')
    change_re(f, r'# and gets build/lib/libvma-NAME\.a from(?s:.*?)# hands the target to the tree\'s Makefile, so that there is one dependency graph only\.\n',
              '''# and gets build/lib/libvma-NAME.a from its *.c and those of its folders (a *.bpf.c is compiled for the kernel's BPF
# machine instead and turned into the libbpf skeleton FOLDER/FILE.skel.h, which the .c files may include as
# <FOLDER/FILE.skel.h>), one test program from each test/test_*.c and test/stress_*.c (cmocka, linked with the archive
# and DEPS), one fuzz target from each test/fuzz_*.c (VARIANT=fuzz only), and the targets lib-NAME and test-NAME. Run in
# the component's own folder, make hands the target to the tree's Makefile, so that there is one dependency graph only.
#
# A folder includes the headers at the component's top, and those of the folders that FOLDERS names after its colon. The
# top includes no folder's, unless an entry `.:FOLDER,FOLDER` says so. mk/lint holds all this.
''', 'FOLDERS names after its colon')
    change(f, '''$(NAME)_BPF := $(wildcard $($(NAME)_DIR)/*.bpf.c)
''', '''$(NAME)_FOLDERS := $(filter-out .,$(foreach f,$(FOLDERS),$(firstword $(subst :, ,$(f)))))
$(NAME)_FILES := $(wildcard $(addsuffix /*.c,$($(NAME)_DIR) $(addprefix $($(NAME)_DIR)/,$($(NAME)_FOLDERS))))
$(NAME)_BPF := $(filter %.bpf.c,$($(NAME)_FILES))
''')
    change(f, '''$(NAME)_SRC := $(filter-out %.bpf.c,$(wildcard $($(NAME)_DIR)/*.c)) ''',
           '''$(NAME)_SRC := $(filter-out %.bpf.c,$($(NAME)_FILES)) ''')
    change(f, '''gen skeleton $$< name $$(*F) >''', '''gen skeleton $$< name $$(subst /,_,$$*) >''')
    change(f, '''	$$(Q)mkdir -p $$(@D) && rm -f $$@ && $$(AR) rcs $$@ $$(filter %.o,$$^)
''', '''	$$(Q)mkdir -p $$(@D) && rm -f $$@ && $$(AR) qcs $$@ $$(filter %.o,$$^)
''')
    change(f, '''# An archive is built anew also when a source file has gone.
''', '''# An archive is built anew also when a source file has gone. Objects of two folders may have one name: `ar q` keeps both.
''')
    change(f, '''SRCS :=
LIBS :=
DEPS :=
endif''', '''SRCS :=
LIBS :=
DEPS :=
FOLDERS :=
endif''')

    folders = {
        'nic': 'wire xdp client:xdp owner:xdp vmad:owner,xdp',
        'tcp': '.:cc,loss,lwip,rx,timer lwip cc:lwip loss:lwip timer:loss tx:loss,lwip rx:loss,lwip,timer',
        'sock': 'fd thread wait:engine,thread engine:fd,wait',
    }
    for name, value in folders.items():
        f = 'components/%s/Makefile' % name
        change_re(f, r'(?<=\n)include \$\(VMA_ROOT\)/mk/component\.mk\n',
                  'FOLDERS := %s\ninclude $(VMA_ROOT)/mk/component.mk\n' % value, 'FOLDERS :=')

    f = 'components/tcp/Makefile'
    change(f, '$(tcp_LWIP_INCLUDES) -I$(tcp_DIR) $(INCLUDES)', '$(tcp_LWIP_INCLUDES) $(INCLUDES)')
    change(f, '''$(wildcard $(tcp_DIR)/lwip/*.h $(tcp_DIR)/lwip/arch/*.h)''', '''$(wildcard $(tcp_DIR)/lwip/*.h $(tcp_DIR)/lwip/arch/*.h)''')
    text = read('tests/build/lwip.sh')
    write('tests/build/lwip.sh', text.replace('/obj/components/tcp/lwip_*.o', '/obj/components/tcp/lwip/*.o'))


# ---- lint ----

def lint():
    f = 'mk/lint'
    change(f, '''-I/usr/include/libnl3 -Icomponents/tcp
	-Icomponents/tcp/lwip''', '''-I/usr/include/libnl3 -Icomponents/tcp/lwip
	''', done='-I/usr/include/libnl3 -Icomponents/tcp/lwip')
    text = read(f).replace('-Icomponents/tcp/lwip\n\t -isystem', '-Icomponents/tcp/lwip\n\t-isystem')
    write(f, text)
    change(f, '''# A component includes <vma/X.h> of itself and of components below it, and private headers of its own folder. The
# order is that of COMPONENTS in the Makefile; a component's DEPS follow it as well.
''', '''# A component includes <vma/X.h> of itself and of components below it, and private headers of its own. The order is that
# of COMPONENTS in the Makefile; a component's DEPS follow it as well. Of the folders inside a component each includes
# what the component's Makefile says in FOLDERS (mk/component.mk).
''')
    change(f, '''		awk '/^DEPS :=/ { for (i = 3; i <= NF; i++) print "dep", FILENAME, $i }' components/*/Makefile
''', '''		awk '/^DEPS :=/ { for (i = 3; i <= NF; i++) print "dep", FILENAME, $i }
			/^FOLDERS :=/ { for (i = 3; i <= NF; i++) print "folder", FILENAME, $i }' components/*/Makefile
''')
    change(f, '''		function back(user, used) {''', '''		# The folder of a path inside its component; ".": its top.
		function folder(path, part) { return split(path, part, "/") > 3 ? part[3] : "." }
		function clean(path) {
			while (sub(/\\/[^\\/.]+\\/\\.\\.\\//, "/", path));
			return path
		}
		function back(user, used) {''')
    change(f, '''		$1 == "dep" && back(owner($2), $3) {''', '''		$1 == "folder" {
			n_may = split($3, step, /[:,]/)
			for (i = 2; i <= n_may; i++) may[owner($2), step[1], step[i]]
		}
		$1 == "dep" && back(owner($2), $3) {''')
    change_re(f, r'''			inside = \$2 ~ (?s:.*?)		\}'
''', '''			path = $2
			sub(/[^\\/]*$/, "", path)
			path = clean(path $4)
			in_test = $2 ~ /\\/test\\//
			# A test may lie in the bed that the tests of a component below have made.
			if (in_test && path ~ /\\/test\\// && owner($2) in rank && owner(path) in rank && !back(owner($2), owner(path)))
				next
			if (owner($2) == "" ? $4 !~ (in_test ? "^(\\\\.\\\\./)?[^/]+$" : "^[^/]+$") : owner(path) != owner($2)) {
				print $2 ": private headers stay in their folder: \\"" $4 "\\""
				next
			}
			if (owner($2) == "" || in_test) next
			from = folder($2)
			to = folder(path)
			if (from != to && to != "." && !((owner($2), from, to) in may))
				print $2 ": " (from == "." ? "the top of " owner($2) : owner($2) "/" from) " must not include " to "/"
		}'
''', 'must not include " to "/"')
    change(f, '''		[ -s "components/$c/README.md" ] ||''', '''		for folder in $(git ls-files -- "components/$c/*/*.c" | cut -d/ -f3 | grep -vx test | sort -u); do
			sed -n 's/^FOLDERS := //p' "components/$c/Makefile" | tr ' ' '\\n' | grep -qE "^$folder(:|\\$)" ||
				echo "components/$c/$folder has sources, but is not in FOLDERS"
		done
		[ -s "components/$c/README.md" ] ||''')
    change(f, '''check_components_whole() {
	local c
''', '''check_components_whole() {
	local c folder
''')
    f = 'tests/build/lint.sh'
    change(f, '''finds "a dependency that points up" ''', '''finds "a folder that must not know another" directions 'nic/client must not include owner/' components/nic/client/client.c '#include "../owner/owner.h"'
finds "a folder's header at the component's top" directions 'the top of nic must not include wire/' components/nic/nic.c '#include "wire/wire.h"'
finds "a folder that is not built" components_whole 'components/nic/loose has sources' components/nic/loose/loose.c 'int vma_loose;'
finds "a dependency that points up" ''', done='nic/client must not include')
    f = 'tests/build/install.sh'
    change(f, '''check "vmad is installed" ''', '''for archive in build/lib/libvma-*.a; do
	name=$(basename "$archive" .a)
	[ -f "$WORK/root/usr/lib/$name.a" ] || continue
	component=${name#libvma-}
	# Objects of two folders may have one name; each is in the archive, and in the installed one.
	git ls-files -- "components/$component/*.c" | grep -vE '/test/|\\.bpf\\.c$' | sed 's|^|build/obj/|; s|c$|o|' |
		xargs nm -g --defined-only | awk 'NF == 3 { print $3 }' | sort >"$WORK/objects"
	for built in "$archive" "$WORK/root/usr/lib/$name.a"; do
		nm -g --defined-only "$built" 2>/dev/null | awk 'NF == 3 { print $3 }' | sort >"$WORK/members"
		missing=$(comm -23 "$WORK/objects" "$WORK/members")
		[ -s "$WORK/objects" ] && [ -z "$missing" ] || not_ok "$built has all of its component" "$missing"
	done
done
check "vmad is installed" ''', done='has all of its component')


# ---- two headers ----

def headers():
    # What the owner's users see: a client in the same process, and vmad.
    f, new = 'components/nic/xdp/xdp.h', 'components/nic/xdp/owner.h'
    text = read(f)
    at = text.find('/* ---- owner/owner.c: the owner object')
    if not os.path.exists(new):
        if at < 0:
            say('%s: no section of the owner' % f)
        else:
            section = text[at:text.rindex('#endif')].rstrip() + '\n'
            section = section[section.index('*/\n') + 3:].lstrip()
            write(f, text[:at].rstrip() + '\n\n#endif\n')
            write(new, '''/*
 * owner - the owner object of an interface, as those see it who use it: a client in the owner's own process, and the
 *         server of vmad. What is inside is ../owner/owner.h's.
 *
 * Threads: one at a time (the nic's lock, or the only thread of vmad).
 */
#ifndef VMA_NIC_XDP_OWNER_H
#define VMA_NIC_XDP_OWNER_H

#include "xdp.h"

''' + section + '\n#endif\n')
    # Who lists the kernel's sockets: the owner, and the set of a flow's shadows, which clients have, too.
    f, new = 'components/nic/owner/owner.h', 'components/nic/xdp/kernel_sock.h'
    text = read(f)
    if not os.path.exists(new):
        m = re.search(r'/\* ---- (?:xdp/)?kernel_sock\.c ----[^\n]*\*/\n(.*?)(?=/\* ---- |#endif\n\Z)', text, re.S)
        if not m:
            return say('%s: no section of kernel_sock' % f)
        write(f, text[:m.start()] + text[m.end():])
        write(new, '''/*
 * kernel_sock - the kernel's sockets, as sock_diag lists them, and whether a flow would take what one receives.
 *
 * Threads: any; a descriptor that is kept for the next call is one caller's.
 * Progress: a call waits for the kernel's answer, two seconds at most.
 * Memory: the caller's.
 * Example: test/test_owner.c.
 */
#ifndef VMA_NIC_XDP_KERNEL_SOCK_H
#define VMA_NIC_XDP_KERNEL_SOCK_H

#include <stdbool.h>
#include <stdint.h>

#include <vma/nic.h>

''' + m[1].strip() + '\n\n#endif\n')
    for f in c_files('components/nic'):
        text = was = read(f)
        if f == 'components/nic/xdp/kernel_sock.c':
            text = text.replace('#include "../owner/owner.h"', '#include "kernel_sock.h"')
        if f == 'components/nic/xdp/cookies.c' and 'kernel_sock.h' not in text:
            text = text.replace('#include "../owner/owner.h"\n', '').replace('#include "cookies.h"\n', '#include "cookies.h"\n#include "kernel_sock.h"\n', 1)
            if 'kernel_sock.h' not in text:
                say(f + ': includes?')
        if f == 'components/nic/xdp/cookies.h':
            text = text.replace('as in owner/owner.h', 'as in kernel_sock.h')
        if f == 'components/nic/owner/owner.h' and '../xdp/kernel_sock.h' not in text:
            text = text.replace('#include "../xdp/xdp.h"\n', '#include "../xdp/kernel_sock.h"\n#include "../xdp/owner.h"\n#include "../xdp/xdp.h"\n')
        for user in ('client/client.h', 'client/vmad.h', 'vmad/server.h', 'test/fake_kept.h', 'test/fake_owner.h'):
            if f == 'components/nic/' + user and 'xdp/owner.h"' not in text:
                text = re.sub(r'(#include "\.\./xdp/)xdp\.h"\n', r'\1owner.h"\n\g<0>', text, count=1)
        if f == 'components/nic/xdp/proto.h' and '"owner.h"' not in text:
            text = text.replace('#include "xdp.h"\n', '#include "owner.h"\n#include "xdp.h"\n')
        text = re.sub(r'\bowner_(?:foreign|kernel_sock)s?(_walk|_walk_ranges|_bound|_connection|_conflicts)?\b', r'kernel_sock\1', text)
        text = re.sub(r'\bowner_ranges(_of)?\b', r'port_ranges\1', text)
        text = re.sub(r'\bOWNER_RANGES_MAX\b', 'PORT_RANGES_MAX', text)
        if text != was:
            write(f, text)


# ---- texts ----

NIC_TABLE = """| folder | part | spec |
|---|---|---|
| top | the front: spec, flow keys, forwarding (`nic.c`, `backends.c`); the component's descriptors and system calls (`fd.c`, `os.h`); a kernel socket made one end of a connection (`repair.c`) | |
| `wire/` | a link in memory, in one process (`<vma/nic_wire.h>`) or between two | `wire:FILE[,mtu=N]` |
| `client/` | any Linux interface through AF_XDP, as a client of an owner | `xdp:IFNAME` |
| `xdp/` | shared by owners and clients: AF_XDP sockets, the XDP program with its maps, the shared object, the protocol, the kernel's list of sockets | |
| `owner/` | the owner: flows, packet memory, device queues, groups; in-process or in `vmad` | |
| | what outlives a vmad, for the next one: `fdstore.c` (the descriptor store), `record.c`, `adopt.c` | |
| `vmad/` | the server around an owner in a process of its own | |

`wire/` and `client/` include no header of `owner/`. Client and owner meet in `xdp/` only: in memory that both have mapped,
and in messages (`xdp/proto.h`). If the owner is in the client's own process, the client calls it by `xdp/owner.h`.
`FOLDERS` in the Makefile says which folder includes headers of which, and `make lint` holds it.
"""

TCP_TABLE = """| folder, file | noun |
|---|---|
| `stack.c`, `host.c` | runs, due times, the ready list, frames out; the surroundings that keep stacks |
| `conn.c`, `connect.c`, `close.c`, `state.c` | a connection's life; the active open; its end; what is published |
| `listener.c`, `timewait.c`, `reply.c` | half-open connections and accept; what is left after the end; answers to segments of no connection |
| `pending.c`, `stranger.c`, `syncookie.c` | connections that wait for accept, for other processes; segments that may be another process's; SYN cookies |
| `fifo.c`, `budget.h`SHARE | bytes from one thread to another; the bound of all bytesSHARE_TEXT |
| `export.c`, `HEIRS` | a connection that leaves for the kernel's stack; what is left to vmad at the process's end (minisocks) |
| `options.c`, `info.c`, `icmp.c` | options; TCP_INFO; ICMP errors and new routes to the peer |
| `rx/` | a burst: parsed, merged, validated (`input.c`, `segment.c`, `validate.c`), taken on the fast path (`predict.c`) or through lwIP; data out of order (`early.c`) |
| | the fastest path: a conversation's message, with the acknowledgement of the one before (`message.c`) |
| | receive window, buffer growth, delayed ACKs (`window.c`); the reader's side (`read.c`, `urgent.c`) |
| `tx/` | the writer's side (`write.c`); segments (`output.c`), by the fast path (`compose.c`) or through lwIP, and frames of them (`frame.c`, `copy_sum.h`); a smaller MSS (`resegment.c`) |
| `loss/` | loss: found (`scoreboard.c`, `sack_index.c`), repaired (`recovery.c`, `retransmit.c`), taken back (`undo.c`) |
| `cc/` | congestion control (`cc.c`): NewReno, Cubic and none answer to loss, BBR has a model of the path (`newreno.c`, `cubic.c`, `bbr.c`) |
| | delivery rates, which such a model needs, and the pace at which segments leave, which it decides (`rate.c`) |
| `timer/` | timers in constant time (`wheel.c`); what each does (`timers.c`); closed windows (`persist.c`); silent peers (`keepalive.c`); round-trip time (`rtt.c`) |
| `lwip/` | the port: `adapt`, which changes the pinned source at build time, options, hooks, `vma_lwip_queues.h` |
| | what lwIP runs on: one connection at a time, pbufs in frames, clock (`port.c`), objects (`objects.c`); what it tells (`callbacks.c`); a hash with a key (`../siphash.h`) |

All files of the component know a connection (`tcp_priv.h`). The folders know each other as far as `FOLDERS` in the
Makefile says, and `make lint` holds it. A timer asks what is lost; the code that finds a loss includes no timer's header.
"""

SOCK_TABLE = """| folder, file | noun |
|---|---|
| `fd/` (`<vma/sock.h>`) | the descriptor table (`table.c`); the common head of files, and the list of all files (`file.c`); watchers (`watch.c`); guards (`guard.c`) |
| `thread/` (`<vma/sock_thread.h>`) | a structure per thread, memory that is freed when no thread inside can see it (`thread.c`); control objects (`mem.c`) |
| | handlers held back while the thread is inside; bad pointers of the application (`signals.c`) |
| `wait/` (`<vma/sock_thread.h>`) | one wait: looking (`wait.c`); for how long it spins (`spin.c`LOAD); sleeping and watching a ring (`sleep.c`); queues of sleepers (`waitq.c`) |
| | busy pollers: while one drives, the watcher of the ring need not hear of packets (`busy_poller.c`) |
| `engine/` (`<vma/sock_engine.h>`) | start in steps, exit, fork (`engine.c`); what is said at start (`banner.c`); what happens with what is not offloaded (`exception.c`), and why it is not (`reason.c`) |
| | which interfaces are offloaded, and through which vmad (`device.c`, `vmad_path.c`) |
| | a ring context: by allocation logic, by bit, by reference (`ring_ctx.c`); unarmed when it is busy and no thread sleeps on it (`ring_disarm.c`); its TCP stack, made on demand (`ring_ctx_tcp.c`) |
| | the internal thread (`internal.c`); until when it sleeps (`sleep_time.h`) |
| | its housekeeping: ring contexts (`ring_housekeeping.c`), those with a TCP stack (`tcp_housekeeping.c`), ICMP errors for connections (`icmp_housekeeping.c`) |
| | what it tells files (`notify.c`); tasks that others leave for it (`task.c`); hand-offs of vfork children (`vfork_handoff.c`) |
| | sockets that another process takes by pidfd_getfd: the taker asks, and the owner process hands them over (`taken.c`)INHERITED |
| `name.c` (`<vma/sock_name.h>`) | addresses as the application, the shadow, and IPv4 code inside have them: AF_INET6 sockets serve IPv4, too |
| `named.c` (`<vma/sock_named.h>`) | datagram sockets with abstract names; each message says which process sent it |
| `timeout.c`, `clock.c` | the time that a socket is to wait; the time now, for code that asks at each packet |
| `os.c` (`<vma/sock_os.h>`) | the C library's own functions |

`FOLDERS` in the Makefile says which folder includes headers of which, and `make lint` holds it. `fd/` and `thread/` know
neither waits nor the engine. A wait drives rings, and the engine wakes threads that wait, so these two know each other.
"""


def readmes():
    share = os.path.exists('components/tcp/share.c')
    there = lambda f, text: text if os.path.exists('components/sock/' + f) else ''
    sock = SOCK_TABLE.replace('INHERITED', there('engine/inherited.c', '; sockets that came through exec: the program asks for them when it uses them (`inherited.c`)'))
    sock = sock.replace('LOAD', there('wait/load.c', ', `load.c`'))
    heirs = [f for f in ('heirs.c', 'minisocks.c') if os.path.exists('components/tcp/' + f)]
    tcp = TCP_TABLE.replace('HEIRS', (heirs or ['heirs.c'])[0]).replace('SHARE_TEXT', '; the frames that connections with a small MSS may send together' if share else '')
    tcp = tcp.replace('SHARE', ', `share.c`' if share else '')
    for name, new in (('nic', NIC_TABLE), ('tcp', tcp), ('sock', sock)):
        f = 'components/%s/README.md' % name
        text = read(f)
        if 'FOLDERS' not in text:
            m = re.search(r'(?m)^\| ?(?:backend|part|file|folder)\b[^\n]*\n\|[-|]+\n(?:\|[^\n]*\n)+', text)
            if not m:
                say(f + ': no table')
            else:
                shown = re.findall(r'`([\w/]+\.[ch])`', m[0])
                text = text[:m.start()] + new + text[m.end():]
                write(f, text)
                for missing in shown:
                    if os.path.basename(missing) not in new and name != 'nic':
                        say('%s: THE OLD TABLE HAD %s, the new one has it not' % (f, missing))
        # Every source is named.
        for path in git('ls-files', '--cached', '--others', '--', 'components/%s/*.c' % name).split():
            if '/test/' in path or not os.path.exists(path) or name == 'nic':
                continue
            if not re.search(r'`(?:[\w/]*/)?%s`' % re.escape(os.path.basename(path)), text):
                say('%s: does not name %s' % (f, path))


def tcp_priv():
    f = 'components/tcp/tcp_priv.h'
    text = read(f)
    end = text.find('*/')
    lines = text[:end].replace('frames out everything below', 'frames out  everything below').split('\n')
    row = re.compile(r'^ \*   (file|(?:[\w/]+\.[ch](?:, )?)+) {2,}(.*)$')
    rows = [(i, m[1], re.split(r' {2,}', m[2])) for i, l in enumerate(lines) for m in [row.match(l)] if m]
    if not rows:
        return
    wide = max(len(r[1]) for r in rows) + 2
    wide2 = max([len(r[2][0]) for r in rows if len(r[2]) > 1 and len(r[2][0]) < 60] or [0]) + 2
    for i, name, rest in rows:
        lines[i] = ' *   ' + name.ljust(wide) + (rest[0].ljust(wide2 - 2) + '  ' + '  '.join(rest[1:]) if len(rest) > 1 else rest[0])
        if len(lines[i]) > 120:
            say('%s: long: %s' % (f, lines[i]))
    new = '\n'.join(lines) + text[end:]
    # The calls of recovery: names have grown by a folder's name and a slash, what belongs to them goes along.
    m = re.search(r' \* ---- loss/recovery\.c: driver.*? \* Nothing here sends.*?\*/', new, re.S)
    if m and re.search(r'\n \* {12}after lwIP', m[0]):
        new = new[:m.start()] + re.sub(r'(?m)^( \*) {12}(?=\S)', r'\1               ', m[0]) + new[m.end():]
    if new != text:
        write(f, new)


def two_columns(f):
    """The table of files at the head: two of them and their nouns in a line."""
    text = read(f)
    end = text.find('*/')
    row = re.compile(r'(?m)^ \*   (\w+\.[ch]) +(\S.*?) {2,}((?:\w+/)?\w+\.[ch]) +(\S.*)$')
    rows = row.findall(text[:end])
    if not rows:
        return
    wide = [max(len(r[i]) for r in rows) + 2 for i in range(3)]
    wide[1] += 2
    new = row.sub(lambda m: ' *   ' + ''.join(m[i + 1].ljust(wide[i]) for i in range(3)) + m[4], text[:end]) + text[end:]
    if new != text:
        write(f, new)


def tree():
    change('README.md', '''components/     one folder, one archive, one public header each; a component uses only those before it:
''', '''components/     one folder, one archive, one public header each; a component uses only those before it. Large ones have
                folders inside (FOLDERS in their Makefile). The lowest first:
''', done='FOLDERS in their Makefile')


def wrap():
    """Comments that have become too long: clang-format folds them, also where the tree's style leaves comments alone."""
    style = '.git/layout-clang-format'
    write(style, re.sub(r'(?m)^ReflowComments:.*\n', '', read('.clang-format')))
    for f in git('diff', '--name-only', '--diff-filter=d', 'HEAD', '--', '*.c', '*.h').split():
        tried = set()
        while True:
            lines = read(f).split('\n')
            long = [i + 1 for i, l in enumerate(lines) if len(l.expandtabs(8)) > 120 and l not in tried
                    and re.search(r'/\*|^[\t ]*\*', l)]
            if not long:
                break
            tried.add(lines[long[0] - 1])
            if re.search(r'\S {3,}\S|--|──', re.sub(r'^.*?/?\*', '', lines[long[0] - 1].strip())):
                say('%s:%d: a drawn line of more than 120 columns, left: %s' % (f, long[0], lines[long[0] - 1].strip()))
                continue
            subprocess.run(['clang-format', '-i', '--style=file:' + os.path.abspath(style),
                            '--lines=%d:%d' % (long[0], long[0]), f], check=True)
        for i, l in enumerate(read(f).split('\n')):
            if len(l.expandtabs(8)) > 120:
                say('%s:%d: longer than 120' % (f, i + 1))
    os.remove(style)


def main():
    os.chdir(git('rev-parse', '--show-toplevel').strip())
    make()
    lint()
    headers()
    tcp_priv()
    two_columns('components/nic/wire/wire.h')
    two_columns('components/nic/owner/owner.h')
    readmes()
    tree()
    git('add', '-A', '--', '.', ':!scripts-layout')
    wrap()


main()

#!/usr/bin/env bash
# Another user's process holds vmad's abstract name, and its fdstore's: vmad owns the interface all the same, and says
# who that is. Its own socket lies in a folder that only root writes; a folder that is not so is not used.
#
# seconds: 30
. "$(dirname "$0")/../lib.sh"
need_xdp
net_pair
vmad=$(realpath "$BUILD")/bin/vmad
client=$BUILD/components/nic/test/priv_xdp_client
ifindex=$(in_ns b cat "/sys/class/net/$IF_B/ifindex")
chmod 755 "$WORK"
cp "$ROOT/tests/hostile/squatters.py" "$WORK/"
nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
cookie() { # NAMESPACE: its cookie
	in_ns "$1" python3 -c 'import socket; print(int.from_bytes(socket.socket().getsockopt(1, 71, 8), "little"))'
}
folder=/run/vma
path=$folder/$(cookie b).$ifindex
squat() { # LABEL NAME KIND
	start "$1" b "${nobody[@]}" /usr/bin/python3 "$WORK/squatters.py" "$2" "$3"
	wait_for 10 log_has "$1" holds
}
owner_up() { # LABEL [OPTION...]
	start "$1" b "$vmad" --foreground "${@:2}" "$IF_B"
	wait_for 15 log_has "$1" "owns $IF_B"
}
serves() { # what is sent to the client comes back
	in_ns a "$client" ping "$IP_B" 0.2 7001 >"$WORK/ping.log" 2>&1
	awk '$1 == 7001 && $3 > 0 && $3 == $5 { ok = 1 } END { exit !ok }' "$WORK/ping.log"
}
no_file() { # that of the fdstore goes when it has heard of vmad's end
	! ls "$path".* >/dev/null 2>&1
}
kernel_saw() {
	snmp b Udp InDatagrams
}

# ---- the names are held ----

for kind in open full deaf; do
	check "$kind: another user's process holds the name" squat squatter "vma/vmad/$ifindex" $kind
	check "$kind: vmad owns the interface" owner_up owner
	check "$kind: and says that the name is held" log_has owner "abstract name is held by"
	[ $kind != open ] ||
		check "$kind: by whom" log_has owner "process ${PID[squatter]} of user 65534, neither root nor this user"
	start served b "$client" serve "$IF_B" "$IP_B" 7001 vmad
	check "$kind: a client finds vmad" wait_for 10 log_has served "^ready 7001 "
	before=$(kernel_saw)
	check "$kind: and gets what is sent" serves
	check_eq "$kind: the kernel none of it" "$(kernel_saw)" "$before"
	start second b "$vmad" --foreground "$IF_B"
	finish second 10
	check_eq "$kind: a second vmad ends" $? 1
	check "$kind: and says that there is one" log_has second "has a vmad already"
	check "$kind: it can be replaced" owner_up second --replace
	finish owner 10
	check_eq "$kind: the first one has ended" $? 0
	check "$kind: the client is served" wait_for 10 serves
	stop served
	stop second
	check "$kind: no file is left" wait_for 5 no_file
	start ondemand b "$client" serve "$IF_B" "$IP_B" 7001 vmad "start=$vmad"
	check "$kind: a client starts a vmad" wait_for 15 log_has ondemand "^ready 7001 "
	stop ondemand
	no_file() { ! ls "$path".* 2>/dev/null; }
	check "$kind: which ends, and leaves no file" wait_for 10 no_file
	stop squatter KILL
done

# ---- the fdstore's name, and a vmad that is killed ----

check "the fdstore's name is held" squat holder "vma/fdstore/$ifindex" open
check "vmad owns the interface" owner_up owner
start served b "$client" serve "$IF_B" "$IP_B" 7001 vmad
check "a client is served" wait_for 10 log_has served "^ready 7001 "
stop owner KILL
check "the dead one's socket is there" test -S "$path.vmad"
check "a new vmad owns the interface" owner_up second
check "and goes on where the dead one has ended" log_has second "goes on where another vmad has ended, with 1 queue pairs"
check "the client is served" wait_for 10 serves
stop served
stop second
stop holder KILL

check "a dead vmad's socket is left" owner_up owner --keep 0
stop owner KILL
test -S "$path.vmad"
for label in 1 2 3 4; do start "one$label" b "$vmad" --foreground "$IF_B"; done
one_owns() { [ "$(cat "$WORK"/one?.log | grep -c "owns $IF_B")" = 1 ]; }
check "of several that find it one owns the interface" wait_for 15 one_owns
the_others_end() { [ "$(cat "$WORK"/one?.log | grep -c "has a vmad already")" = 3 ]; }
check "and the others end" wait_for 15 the_others_end
for label in 1 2 3 4; do reap "one$label"; done

# ---- what a namespace that is gone has left ----

ns_add c && ns_join c 10.9.1.3 a 10.9.1.4
gone=$folder/$(cookie c).$(in_ns c cat "/sys/class/net/$IF_C/ifindex").vmad
start owner c "$vmad" --foreground --keep 0 "$IF_C"
check "a vmad in another namespace" wait_for 10 log_has owner "owns $IF_C"
check "listens in the folder" test -S "$gone"
check "a vmad here leaves it alone" owner_up second
check "so it is there" test -S "$gone"
stop second
stop owner KILL
ns_del c
check "when that has been killed, and the namespace is gone," owner_up second
check "a vmad removes its file" test ! -e "$gone"
check "a file of the folder that is no socket of vmad's stays" test -e "$folder/lock"
stop second

# ---- a folder that is not root's alone ----

# A /run of its own, as in a container. COMMAND of sh makes what is found there.
elsewhere() { # LABEL COMMAND PROGRAM...
	start "$1" b unshare -m sh -c "mount -t tmpfs -o mode=755 none /run && { $2; } && exec \"\$@\"" sh "${@:3}"
}
cat >"$WORK/cases" <<'CASES'
another user's|mkdir /run/vma && chown 65534 /run/vma
writable by its group|mkdir /run/vma && chmod 775 /run/vma
writable by all|mkdir /run/vma && chmod 1777 /run/vma
a symlink|mkdir -m 755 /run/x && ln -s x /run/vma
in a folder that all may write|chmod 777 /run && mkdir -m 755 /run/vma
CASES
while IFS='|' read -r what make; do
	elsewhere owner "$make" "$vmad" --foreground "$IF_B"
	check "$what: vmad owns the interface" wait_for 10 log_has owner "owns $IF_B"
	check "$what: and says that the folder is not root's alone" log_has owner "/run/vma is not root's alone"
	elsewhere served "$make" "$client" serve "$IF_B" "$IP_B" 7001 vmad
	check "$what: a client finds it by its name" wait_for 10 log_has served "^ready 7001 "
	stop served
	stop owner
done <"$WORK/cases"

start owner b unshare -m sh -c 'mount -t tmpfs -o ro none /run && exec "$@"' sh "$vmad" --foreground "$IF_B"
check "without a /run that can be written vmad owns the interface" wait_for 10 log_has owner "owns $IF_B"
start served b "$client" serve "$IF_B" "$IP_B" 7001 vmad
check "a client finds it by its name" wait_for 10 log_has served "^ready 7001 "
stop served
stop owner
check "a vmad here, and a client in a container" owner_up owner
elsewhere served "mkdir -m 755 /run/vma" "$client" serve "$IF_B" "$IP_B" 7001 vmad
check "that finds it by its name, too" wait_for 10 log_has served "^ready 7001 "
elsewhere second true "$vmad" --foreground "$IF_B"
finish second 10
check_eq "a vmad there ends" $? 1
check "and says that there is one" log_has second "has a vmad already"
check "which lives" alive owner
stop served
stop owner
check "no file is left" wait_for 5 no_file
done_testing

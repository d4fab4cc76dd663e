#!/usr/bin/env bash
# dovecot as shipped: its master polls the listener of IMAP, and a program that it forks and executes, as another user
# and in another root directory, accepts from it. Clients log in and read a message, one after the other and many at a
# time, the first one before any such program runs.
#
# seconds: 7
. "$(dirname "$0")/../lib_programs.sh"
. "$(dirname "$0")/../lib_servers.sh"
net_pair
# shellcheck disable=SC2154 # where: lib_programs.sh
clients=12

make_mail() {
	local mail="$WORK/mail/Maildir"
	mkdir -p "$mail/new" "$mail/cur" "$mail/tmp"
	printf 'From: a@example.org\nSubject: one\n\nhello\n' >"$mail/new/1.1.host"
	echo 'tom:{PLAIN}secret:65534:65534::'"$WORK/mail::" >"$WORK/users"
	cat >"$WORK/dovecot.conf" <<-CONF
		protocols = imap
		listen = 0.0.0.0
		base_dir = $WORK/run
		log_path = $WORK/dovecot.log
		ssl = no
		disable_plaintext_auth = no
		mail_location = maildir:~/Maildir
		first_valid_uid = 1
		service imap-login {
		  inet_listener imap {
		    port = 1143
		  }
		  inet_listener imaps {
		    port = 0
		  }
		}
		passdb {
		  driver = passwd-file
		  args = $WORK/users
		}
		userdb {
		  driver = passwd-file
		  args = $WORK/users
		}
	CONF
	chmod 755 "$WORK"
	chmod -R a+rX "$WORK"
	chown -R 65534:65534 "$WORK/mail"
	cat >"$WORK/imap.py" <<-'PY'
		import imaplib, socket, sys, threading
		failed = []
		def one():
		    try:
		        m = imaplib.IMAP4(sys.argv[1], 1143, timeout=20)
		        m.login("tom", "secret")
		        m.select()
		        assert b"hello" in m.fetch("1", "(BODY[TEXT])")[1][0][1]
		        m.logout()
		    except Exception as e:
		        failed.append(repr(e))
		all = [threading.Thread(target=one) for _ in range(int(sys.argv[2]))]
		for t in all: t.start()
		for t in all: t.join()
		print(len(failed), "failed", failed[:3])
		sys.exit(bool(failed))
	PY
}

reads_mail() { # CLIENTS
	client /usr/bin/python3 "$WORK/imap.py" "$IP_B" "$1"
}

reads_in_turn() {
	local i
	for ((i = 0; i < 5; i++)); do
		reads_mail 1 || return
	done
}

make_mail
for w in server both; do
	combination $w || continue
	s="dovecot, $where offloaded"
	serve dovecot /usr/sbin/dovecot -F -c "$WORK/dovecot.conf"
	check "$s: the server starts" wait_for 20 listens 1143
	check "$s: the first client reads its mail" reads_mail 1
	check "$s: so do others, one after the other" reads_in_turn
	check "$s: and $clients at a time" reads_mail $clients
	check "$s: the server still runs" alive dovecot
	stop dovecot
done
done_testing

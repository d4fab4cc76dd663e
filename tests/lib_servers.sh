# shellcheck shell=bash
# Servers as their packages ship them: each function writes the server's configuration and starts the server in b, with
# $server_with in its environment (LD_PRELOAD=..., or nothing). The tests of tests/servers and bench/programs.sh
# share them. Every server answers on $IP_B: an HTTP server gives the files of $WWW.
#
# With says_process=1 nginx names the process that answers (X-Process), as app.py and node_server.js always do, and apache
# writes it into $WORK/apache/processes, a line for each answer.
#
#   serve_nginx WORKERS          8080   master as root, workers as www-data
#   serve_apache MPM             8081   event or prefork, workers as www-data
#   serve_haproxy                8082   master and worker, user haproxy, chroot; in front of serve_backend's server
#   serve_backend                8090   nginx on kernel sockets, on loopback
#   serve_gunicorn WORKERS       8083   app.py
#   serve_uwsgi WORKERS          8084   app.py
#   serve_node WORKERS [POLICY] [ADDRESS]
#                                8085   node_server.js, node's cluster module
#   serve_java SERVER            8086   HttpServer or NioServer
#   serve_postgres               5432   as postgres
#   serve_sshd                   2222
# shellcheck disable=SC2154 # IP_B, WORK, ROOT: lib.sh

SERVERS=$ROOT/tests/servers
WWW=$WORK/www
chmod 755 "$WORK"
mkdir -p "$WWW"

# As hosts are: servers listen on "::" by default, and some look first whether there is IPv6.
with_ipv6() {
	local name
	for name in a b; do in_ns $name sysctl -qw net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.default.disable_ipv6=0; done
}

serve_in_b() { # LABEL COMMAND...
	local label=$1
	shift
	start "$label" b env ${server_with:+"$server_with"} "$@"
}

configure_nginx() { # WORKERS
	mkdir -p "$WORK/nginx"
	chmod 777 "$WORK/nginx"
	cat >"$WORK/nginx.conf" <<-CONF
		user www-data; worker_processes $1; daemon off; error_log $WORK/nginx/error.log warn; pid $WORK/nginx/pid;
		events { worker_connections 2000; }
		http {
			access_log off; keepalive_requests 1000000; default_type application/octet-stream; sendfile on;
			client_body_temp_path $WORK/nginx; proxy_temp_path $WORK/nginx; fastcgi_temp_path $WORK/nginx;
			uwsgi_temp_path $WORK/nginx; scgi_temp_path $WORK/nginx;
			server { listen 8080${2:+ $2}; root $WWW; ${says_process:+add_header X-Process \$pid;} }
		}
	CONF
}

serve_nginx() { # WORKERS [LISTEN-OPTION]
	configure_nginx "$@"
	serve_in_b nginx /usr/sbin/nginx -c "$WORK/nginx.conf" -e stderr
}

serve_apache() { # MPM
	local modules=/usr/lib/apache2/modules
	mkdir -p "$WORK/apache"
	rm -f "$WORK/apache/processes"
	cat >"$WORK/apache.conf" <<-CONF
		ServerRoot $WORK/apache
		ServerName $IP_B
		PidFile $WORK/apache/pid
		Mutex file:$WORK/apache
		ErrorLog $WORK/apache/error.log
		LoadModule mpm_$1_module $modules/mod_mpm_$1.so
		LoadModule authz_core_module $modules/mod_authz_core.so
		User www-data
		Group www-data
		Listen 8081
		KeepAlive On
		MaxKeepAliveRequests 0
		${says_process:+CustomLog $WORK/apache/processes %P}
		DocumentRoot $WWW
		<Directory $WWW>
			Require all granted
		</Directory>
	CONF
	# It ends by a signal to its process group, which is not to be ours.
	serve_in_b apache setsid /usr/sbin/apache2 -f "$WORK/apache.conf" -DFOREGROUND
}

serve_backend() {
	mkdir -p "$WORK/backend"
	cat >"$WORK/backend.conf" <<-CONF
		daemon off; master_process off; error_log stderr warn; pid $WORK/backend/pid;
		events { worker_connections 2000; }
		http {
			access_log off; keepalive_requests 1000000; default_type application/octet-stream; sendfile on;
			client_body_temp_path $WORK/backend; proxy_temp_path $WORK/backend; fastcgi_temp_path $WORK/backend;
			uwsgi_temp_path $WORK/backend; scgi_temp_path $WORK/backend;
			server { listen 127.0.0.1:8090; root $WWW; }
		}
	CONF
	start backend b /usr/sbin/nginx -c "$WORK/backend.conf" -e stderr
}

serve_haproxy() {
	mkdir -p "$WORK/haproxy"
	cat >"$WORK/haproxy.cfg" <<-CONF
		global
			chroot $WORK/haproxy
			user haproxy
			group haproxy
			stats socket $WORK/haproxy/admin.sock mode 660 level admin
		defaults
			mode http
			timeout connect 5s
			timeout client 50s
			timeout server 50s
		frontend front
			bind :8082
			default_backend back
		backend back
			server one 127.0.0.1:8090
	CONF
	serve_in_b haproxy /usr/sbin/haproxy -W -f "$WORK/haproxy.cfg" -p "$WORK/haproxy/pid"
}

serve_gunicorn() { # WORKERS
	serve_in_b gunicorn gunicorn --chdir "$SERVERS" --env WWW="$WWW" -w "$1" -b "0.0.0.0:8083" --user nobody --group nogroup \
		--worker-tmp-dir /dev/shm app:app
}

serve_uwsgi() { # WORKERS
	serve_in_b uwsgi env WWW="$WWW" uwsgi_python3=1 uwsgi --plugins python3 --http-socket "0.0.0.0:8084" --master \
		--processes "$1" --chdir "$SERVERS" --module app:app --uid nobody --gid nogroup --disable-logging --die-on-term
}

serve_node() { # WORKERS [POLICY] [ADDRESS]
	serve_in_b node env ${2:+NODE_CLUSTER_SCHED_POLICY="$2"} node "$SERVERS/node_server.js" 8085 "$1" "$WWW" ${3:+"$3"}
}

serve_java() { # HttpServer|NioServer
	[ -e "$WORK/java/$1.class" ] || javac -d "$WORK/java" "$SERVERS/$1.java" || return
	serve_in_b java java -cp "$WORK/java" "$1" 8086 "$WWW"
}

# The folder of PostgreSQL's programs; Debian keeps them out of PATH.
postgres_bin() {
	dirname "$(printf '%s\n' /usr/lib/postgresql/*/bin/postgres | tail -n 1)"
}

serve_postgres() {
	local bin
	bin=$(postgres_bin)
	if [ ! -e "$WORK/postgres/PG_VERSION" ]; then
		install -d -o postgres "$WORK/postgres" &&
			setpriv --reuid postgres --regid postgres --clear-groups "$bin/initdb" -D "$WORK/postgres" -A trust -N >"$WORK/initdb.log" 2>&1 &&
			echo "host all all 10.9.0.0/24 trust" >>"$WORK/postgres/pg_hba.conf" || return
	fi
	serve_in_b postgres setpriv --reuid postgres --regid postgres --clear-groups "$bin/postgres" -D "$WORK/postgres" \
		-c listen_addresses='*' -c unix_socket_directories= -c fsync=off -c max_connections=300
}

serve_sshd() {
	mkdir -p "$WORK/ssh" /run/sshd
	chmod 700 "$WORK/ssh"
	[ -e "$WORK/ssh/host" ] || {
		ssh-keygen -q -t ed25519 -N '' -f "$WORK/ssh/host" && ssh-keygen -q -t ed25519 -N '' -f "$WORK/ssh/user" &&
			cp "$WORK/ssh/user.pub" "$WORK/ssh/authorized" || return
	}
	cat >"$WORK/ssh/config" <<-CONF
		Port 2222
		HostKey $WORK/ssh/host
		AuthorizedKeysFile $WORK/ssh/authorized
		PidFile $WORK/ssh/pid
		StrictModes no
		PermitRootLogin yes
		UsePAM no
		MaxStartups 100
		Subsystem sftp internal-sftp
	CONF
	serve_in_b sshd /usr/sbin/sshd -D -e -f "$WORK/ssh/config"
}

# A proxy connects to its backend on loopback, which is the kernel's: it accepts as many connections there as it makes.
# accepted_before: passive_alone of before.
passive_alone() {
	echo "$(($(snmp b Tcp PassiveOpens) - $(snmp b Tcp ActiveOpens)))"
}
still_but_backend() { # SENTENCE
	[ -n "$kernel" ] || check_eq "$1: the kernel accepted no connection but the backend's" "$(passive_alone)" "$accepted_before"
}

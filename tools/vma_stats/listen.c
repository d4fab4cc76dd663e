/* listen - a server of libmicrohttpd. */
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "listen.h"
#include "metrics.h"

#define HOST_BYTES 64
#define REQUEST_BYTES 16384 /* of memory for one connection: request line and headers */

#define OPENMETRICS_TYPE "application/openmetrics-text; version=1.0.0; charset=utf-8"
#define TEXT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* ---- the address ---- */

/* The host without its brackets; an address that has colons needs them. */
static bool split_host(const char *text, const char *colon, char host[HOST_BYTES])
{
	size_t len = (size_t)(colon - text);
	const bool brackets = len >= 2 && text[0] == '[' && colon[-1] == ']';

	if (brackets) {
		text++;
		len -= 2;
	}
	if (len == 0 || len >= HOST_BYTES || (memchr(text, ':', len) != NULL) != brackets)
		return false;
	memcpy(host, text, len);
	host[len] = '\0';
	return true;
}

static bool is_port(const char *text)
{
	const size_t len = strlen(text);

	return len >= 1 && len <= 5 && strspn(text, "0123456789") == len && atol(text) <= 65535;
}

bool listen_address_parse(const char *text, struct listen_address *out)
{
	const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
	const char *const colon = strrchr(text, ':'), *const port = colon != NULL ? colon + 1 : text;
	char host[HOST_BYTES] = "127.0.0.1";
	struct addrinfo *found;

	if (!is_port(port) || (colon != NULL && !split_host(text, colon, host)) ||
	    getaddrinfo(host, port, &hints, &found) != 0)
		return false;
	if (out != NULL) {
		memcpy(&out->address, found->ai_addr, found->ai_addrlen);
		out->bytes = found->ai_addrlen;
	}
	freeaddrinfo(found);
	return true;
}

/* A listening socket, and the address that it has got; -errno. */
static int open_listener(struct listen_address *address)
{
	const int yes = 1, fd = socket(address->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int rc;

	if (fd < 0)
		return -errno;
	/* A port that its last user has just left is free. */
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	if (bind(fd, (const struct sockaddr *)&address->address, address->bytes) == 0 && listen(fd, SOMAXCONN) == 0 &&
	    getsockname(fd, (struct sockaddr *)&address->address, &address->bytes) == 0)
		return fd;
	rc = -errno;
	close(fd);
	return rc;
}

/* ---- requests ---- */

static enum MHD_Result http_send_buffer(struct MHD_Connection *connection, unsigned status, size_t bytes, char *text,
                                        enum MHD_ResponseMemoryMode mode, const char *type)
{
	struct MHD_Response *response = MHD_create_response_from_buffer(bytes, text, mode);
	enum MHD_Result rc;

	if (response == NULL) {
		if (mode == MHD_RESPMEM_MUST_FREE)
			free(text);
		return MHD_NO;
	}
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
		MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
	rc = MHD_queue_response(connection, status, response);
	MHD_destroy_response(response);
	return rc;
}

static enum MHD_Result http_send_text_line(struct MHD_Connection *connection, unsigned status, char *line)
{
	return http_send_buffer(connection, status, strlen(line), line, MHD_RESPMEM_PERSISTENT, TEXT_TYPE);
}

/* OpenMetrics, but for a client that asks for plain text and does not know it. */
static enum metrics_format metrics_format_by_accept_header(struct MHD_Connection *connection)
{
	const char *accept = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_ACCEPT);

	return accept != NULL && strstr(accept, "text/plain") != NULL &&
	                       strstr(accept, "application/openmetrics-text") == NULL
	               ? METRICS_TEXT
	               : METRICS_OPENMETRICS;
}

static enum MHD_Result send_metrics(struct MHD_Connection *connection, const struct options *options)
{
	const enum metrics_format format = metrics_format_by_accept_header(connection);
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);
	int rc = -ENOMEM;

	if (out != NULL) {
		rc = metrics_scrape(options, format, METRICS_SCRAPE_NS, out);
		if (fclose(out) != 0)
			rc = -ENOMEM;
	}
	if (rc < 0) {
		free(text);
		return http_send_text_line(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "no memory\n");
	}
	return http_send_buffer(connection, MHD_HTTP_OK, bytes, text, MHD_RESPMEM_MUST_FREE,
	                        format == METRICS_TEXT ? TEXT_TYPE : OPENMETRICS_TYPE);
}

/*
 * Called when the headers are there, and again when the request is whole. An answer to the first call closes the
 * connection, so it is for what is refused: a body is not waited for.
 */
static enum MHD_Result http_answer_metrics_request(void *arg, struct MHD_Connection *connection, const char *url,
                                                   const char *method, const char *version, const char *upload,
                                                   size_t *upload_bytes, void **request)
{
	(void)version, (void)upload;
	if (strcmp(url, "/metrics") != 0)
		return http_send_text_line(connection, MHD_HTTP_NOT_FOUND, "the metrics are at /metrics\n");
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
		return http_send_text_line(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET and HEAD only\n");
	if (*request == NULL) {
		*request = connection;
		return MHD_YES;
	}
	if (*upload_bytes != 0) { /* a body of GET means nothing */
		*upload_bytes = 0;
		return MHD_YES;
	}
	return send_metrics(connection, arg);
}

/* By select: under epoll the library misses the end of a client that has sent a piece of a request before. */
static int http_server_run(int listener, const struct options *options)
{
	struct MHD_Daemon *daemon =
	        MHD_start_daemon(MHD_NO_FLAG, 0, NULL, NULL, http_answer_metrics_request, (void *)options,
	                         MHD_OPTION_LISTEN_SOCKET, listener, MHD_OPTION_CONNECTION_LIMIT,
	                         (unsigned)LISTEN_CLIENTS, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)LISTEN_IDLE_SECONDS,
	                         MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)REQUEST_BYTES, MHD_OPTION_END);

	if (daemon == NULL) {
		close(listener);
		fputs("vmastat: the HTTP server does not start\n", stderr);
		return EXIT_FAILURE;
	}
	while (MHD_run_wait(daemon, -1) == MHD_YES)
		;
	MHD_stop_daemon(daemon);
	fputs("vmastat: the HTTP server has failed\n", stderr);
	return EXIT_FAILURE;
}

int http_listen_and_serve_metrics(const struct options *options)
{
	struct listen_address address;
	char host[HOST_BYTES], port[8];
	int listener;

	if (!listen_address_parse(options->listen, &address))
		return EXIT_FAILURE;
	signal(SIGPIPE, SIG_IGN); /* a client that goes is its own matter */
	listener = open_listener(&address);
	if (listener < 0) {
		fprintf(stderr, "vmastat: cannot listen on %s: %s\n", options->listen, strerrordesc_np(-listener));
		return EXIT_FAILURE;
	}
	if (getnameinfo((const struct sockaddr *)&address.address, address.bytes, host, sizeof(host), port,
	                sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) == 0)
		fprintf(stderr, "vmastat: serving metrics at http://%s%s%s:%s/metrics\n", strchr(host, ':') ? "[" : "",
		        host, strchr(host, ':') ? "]" : "", port);
	return http_server_run(listener, options);
}

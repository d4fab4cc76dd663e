"""A WSGI application that answers with the files of the folder $WWW, and says by which process (X-Process)."""
import os


def app(environ, start_response):
    try:
        with open(os.path.join(os.environ["WWW"], os.path.basename(environ["PATH_INFO"])), "rb") as file:
            body = file.read()
    except OSError:
        start_response("404 Not Found", [("Content-Length", "0")])
        return [b""]
    start_response("200 OK", [("Content-Length", str(len(body))), ("X-Process", str(os.getpid()))])
    return [body]

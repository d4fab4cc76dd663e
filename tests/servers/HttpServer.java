import com.sun.net.httpserver.HttpExchange;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;

/** HttpServer PORT FOLDER: the HTTP server that comes with Java, with four threads; it answers with the files of FOLDER. */
public class HttpServer {
	public static void main(String[] args) throws IOException {
		Path folder = Path.of(args[1]);
		var files = new ConcurrentHashMap<String, byte[]>();
		var server = com.sun.net.httpserver.HttpServer.create(new InetSocketAddress(Integer.parseInt(args[0])), 0);
		server.setExecutor(Executors.newFixedThreadPool(4));
		server.createContext("/", (HttpExchange exchange) -> {
			byte[] body = files.computeIfAbsent(exchange.getRequestURI().getPath().substring(1), name -> {
				try {
					return Files.readAllBytes(folder.resolve(name));
				} catch (IOException e) {
					return new byte[0];
				}
			});
			exchange.sendResponseHeaders(body.length > 0 ? 200 : 404, body.length > 0 ? body.length : -1);
			try (var out = exchange.getResponseBody()) {
				out.write(body);
			}
		});
		server.start();
		System.out.println("listening");
	}
}

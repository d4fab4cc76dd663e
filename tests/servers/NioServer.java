import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * NioServer PORT FOLDER: a Selector and non-blocking channels. It answers "GET /NAME" with the file NAME of FOLDER, as
 * HTTP/1.1 with connections that stay.
 */
public class NioServer {
	static class Client {
		final ByteBuffer in = ByteBuffer.allocate(16384);
		ByteBuffer out;
	}

	public static void main(String[] args) throws IOException {
		Path folder = Path.of(args[1]);
		Selector selector = Selector.open();
		ServerSocketChannel listener = ServerSocketChannel.open();
		listener.bind(new InetSocketAddress(Integer.parseInt(args[0])), 1024);
		listener.configureBlocking(false);
		listener.register(selector, SelectionKey.OP_ACCEPT);
		System.out.println("listening");
		while (true) {
			selector.select();
			for (var keys = selector.selectedKeys().iterator(); keys.hasNext();) {
				SelectionKey key = keys.next();
				keys.remove();
				if (key.isAcceptable()) {
					SocketChannel channel = listener.accept();
					if (channel != null) {
						channel.configureBlocking(false);
						channel.register(selector, SelectionKey.OP_READ, new Client());
					}
				} else {
					try {
						serve(folder, key, (Client) key.attachment());
					} catch (IOException e) {
						key.channel().close();
					}
				}
			}
		}
	}

	private static void serve(Path folder, SelectionKey key, Client client) throws IOException {
		SocketChannel channel = (SocketChannel) key.channel();
		if (client.out == null) {
			if (channel.read(client.in) < 0) {
				channel.close();
				return;
			}
			String request = new String(client.in.array(), 0, client.in.position(), StandardCharsets.ISO_8859_1);
			if (!request.contains("\r\n\r\n"))
				return;
			client.in.clear();
			byte[] body = Files.readAllBytes(folder.resolve(request.split(" ")[1].substring(1)));
			byte[] head = ("HTTP/1.1 200 OK\r\nContent-Length: " + body.length + "\r\n\r\n").getBytes(StandardCharsets.ISO_8859_1);
			client.out = ByteBuffer.allocate(head.length + body.length).put(head).put(body).flip();
		}
		channel.write(client.out);
		if (!client.out.hasRemaining()) {
			client.out = null;
			key.interestOps(SelectionKey.OP_READ);
		} else {
			key.interestOps(SelectionKey.OP_WRITE);
		}
	}
}

// node_server.js PORT WORKERS FOLDER [ADDRESS]: an HTTP server that answers with the files of FOLDER, as node's cluster
// module has it: WORKERS processes, or this process alone if WORKERS is 0. It listens on ADDRESS, or where node does by
// default, on "::". Each answer names its process.
'use strict';
const cluster = require('cluster'), fs = require('fs'), http = require('http'), path = require('path');
const port = Number(process.argv[2]), workers = Number(process.argv[3]), folder = process.argv[4], address = process.argv[5];

if (workers > 0 && cluster.isPrimary) {
	let listening = 0;
	for (let i = 0; i < workers; i++)
		cluster.fork();
	cluster.on('listening', () => ++listening === workers && console.log('listening'));
	cluster.on('exit', () => process.exitCode = 1);
} else {
	const files = new Map(fs.readdirSync(folder).map((name) => [`/${name}`, fs.readFileSync(path.join(folder, name))]));
	http.createServer((request, response) => {
		const body = files.get(request.url);
		response.writeHead(body ? 200 : 404, { 'Content-Length': body ? body.length : 0, 'X-Process': process.pid });
		response.end(body);
	}).listen(port, address, () => workers === 0 && console.log('listening'));
}

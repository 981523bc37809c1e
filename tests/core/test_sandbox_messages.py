"""Which failures are explained with the sandbox.

The two tables are transcripts of programs that ran in the sandbox: `$ command [exit code]`, then the end of the output, shortened, with
neutral paths and addresses. Most of them ran in bubblewrap, with the project writable or read-only; one in seven of the first table ran
with Landlock and seccomp. A few git commands of the second table ran outside, because they need a writable repository.
"""

import re

import pytest

from backburner.core import sandbox_messages
from backburner.core.sandbox_messages import (
    DEVICE,
    FILES,
    LIMIT,
    LOGIN,
    NAMESPACE,
    NETWORK,
    OPERATION,
    PROGRAM,
    SERVICE,
    SOCKET,
    TRACE,
    USER,
    WRITE,
    missing_programs,
    refused_port,
    sandbox_reason,
)

SANDBOX = {
    NETWORK: r"""
$ pip install six==1.16.0 --target /tmp/t [1]
WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by 'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f00>: Failed to establish a new connection: [Errno -3] Temporary failure in name resolution')': /simple/six/
ERROR: Could not find a version that satisfies the requirement six==1.16.0 (from versions: none)
ERROR: No matching distribution found for six==1.16.0
$ yarn install [1]
➤ YN0000: ┌ Resolution step
➤ YN0001: │ RequestError: getaddrinfo EAI_AGAIN registry.example.com
$ pnpm install [124]
 WARN  Moving left-pad that was installed by a different package manager to "node_modules/.ignored"
 WARN  GET https://registry.example.org/left-pad error (EAI_AGAIN). Will retry in 10 seconds. 2 retries left.
 WARN  GET https://registry.example.org/left-pad error (EAI_AGAIN). Will retry in 1 minute. 1 retries left.
$ cargo fetch [101]
Caused by:
  [6] Could not resolve hostname (Could not resolve host: index.example.org)
$ go mod download [1]
go: github.com/pkg/errors@v0.9.1: Get "https://proxy.example.org/github.com/pkg/errors/@v/v0.9.1.mod": dial tcp: lookup proxy.example.org on 10.0.0.53:53: dial udp 10.0.0.53:53: connect: network is unreachable
$ git push origin HEAD [128]
fatal: unable to access 'https://github.com/example/project.git/': Could not resolve host: github.com
$ git clone https://github.com/example/x.git /tmp/x [128]
Cloning into '/tmp/x'...
fatal: unable to access 'https://github.com/example/x.git/': Could not resolve host: github.com
$ git clone git@github.com:example/x.git /tmp/x [128]
Cloning into '/tmp/x'...
ssh: Could not resolve hostname github.com: Temporary failure in name resolution
fatal: Could not read from remote repository.
Please make sure you have the correct access rights
$ git clone git://github.com/example/x.git /tmp/x [128]
Cloning into '/tmp/x'...
fatal: unable to look up github.com (port 9418) (Temporary failure in name resolution)
$ curl https://example.com [6]
  0     0    0     0    0     0      0      0 --:--:-- --:--:-- --:--:--     0curl: (6) Could not resolve host: example.com
$ curl http://93.184.216.34/ [7]
  0     0    0     0    0     0      0      0 --:--:-- --:--:-- --:--:--     0
curl: (7) Failed to connect to 93.184.216.34 port 80 after 0 ms: Couldn't connect to server
$ wget -T 5 -t 1 https://example.com/file -O /tmp/f [4]
Resolving example.com (example.com)... failed: Temporary failure in name resolution.
wget: unable to resolve host address ‘example.com’
$ wget -t 1 http://10.0.0.5/ -O /tmp/f [4]
Connecting to 10.0.0.5:80... failed: Network is unreachable.
$ ssh dev@example.com ls [255]
ssh: Could not resolve hostname example.com: Temporary failure in name resolution
$ ssh -o ConnectTimeout=3 dev@10.0.0.5 [255]
ssh: connect to host 10.0.0.5 port 22: Network is unreachable
$ rsync -a a.txt dev@example.com:/tmp/ [255]
ssh: Could not resolve hostname example.com: Temporary failure in name resolution
rsync: connection unexpectedly closed (0 bytes received so far) [sender]
rsync error: unexplained error (code 255) at io.c(232) [sender=3.2.7]
$ rsync -a rsync://example.com/x /tmp/x [10]
rsync: getaddrinfo: example.com 873: Temporary failure in name resolution
rsync error: error in socket IO (code 10) at clientserver.c(141) [Receiver=3.2.7]
$ nc -vz example.com 80 [1]
nc: getaddrinfo for host "example.com" port 80: Temporary failure in name resolution
$ dig +tries=1 +time=1 example.com [9]
;; UDP setup with 10.0.0.53#53(10.0.0.53) for example.com failed: network unreachable.
;; no servers could be reached
$ psql -h db.example.com -U app app -c 'select 1' [2]
psql: error: could not translate host name "db.example.com" to address: Temporary failure in name resolution
$ redis-cli -h cache.example.com ping [1]
Could not connect to Redis at cache.example.com:6379: Temporary failure in name resolution
$ terraform init [1]
│ lookup registry.terraform.io on 10.0.0.53:53: dial udp
│ 10.0.0.53:53: connect: network is unreachable
│
│ To see which modules are currently depending on hashicorp/random and what
$ mvn -q -B compile [1]
[ERROR] Plugin org.apache.maven.plugins:maven-resources-plugin:2.6 or one of its dependencies could not be resolved: Failed to read artifact descriptor for org.apache.maven.plugins:maven-resources-plugin:jar:2.6: Could not transfer artifact org.apache.maven.plugins:maven-resources-plugin:pom:2.6 from/to central (https://repo.example.org/maven2): transfer failed for https://repo.example.org/maven2/org/apache/maven/plugins/maven-resources-plugin/2.6/maven-resources-plugin-2.6.pom: Unknown host repo.example.org: Temporary failure in name resolution -> [Help 1]
[ERROR] To see the full stack trace of the errors, re-run Maven with the -e switch.
[ERROR] Re-run Maven using the -X switch to enable full debug logging.
$ bundle install --path /tmp/b [17]
[DEPRECATED] The `--path` flag is deprecated because it relies on being remembered across bundler invocations, which bundler will no longer do in future versions. Instead please use `bundle config set --local path '/tmp/b'`, and stop using this flag
Could not reach host gems.example.org. Check your network connection and try
again.
$ gem install --install-dir /tmp/g rack [2]
ERROR:  Could not find a valid gem 'rack' (>= 0), here is why:
          Unable to download data from https://gems.example.org/ - SocketError: Failed to open TCP connection to gems.example.org:443 (getaddrinfo: Temporary failure in name resolution) (https://gems.example.org/specs.4.8.gz)
$ uv pip install --target /tmp/t six [2]
  cause: error resolving DNS
  cause: failed to lookup address information: Temporary failure in name resolution
$ poetry lock -n [1]
All attempts to connect to packages.example.org failed.
Probable Causes:
    - the server is not responding to requests at the moment
$ pre-commit try-repo https://github.com/psf/black [3]
stderr:
    fatal: unable to access 'https://github.com/psf/black/': Could not resolve host: github.com
Check the log at /home/dev/.cache/pre-commit/pre-commit.log
$ hf download gpt2 config.json [1]
'[Errno -3] Temporary failure in name resolution' thrown while requesting HEAD https://huggingface.co/gpt2/resolve/main/config.json
Error: Local entry not found. [Errno -3] Temporary failure in name resolution
Hint: set HF_DEBUG=1 as environment variable for full traceback.
$ python -m nltk.downloader punkt [1]
[nltk_data] Error loading punkt: <urlopen error pathsec.urlopen: no
[nltk_data]     validated address for host
[nltk_data]     'raw.githubusercontent.com'; refusing to connect by
[nltk_data]     unvalidated hostname>
$ tox -e py311 --workdir /tmp/tox [1]
WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by 'NameResolutionError("HTTPSConnection(host='packages.example.org', port=443): Failed to resolve 'packages.example.org' ([Errno -3] Temporary failure in name resolution)")': /simple/six/
ERROR: Could not find a version that satisfies the requirement six (from versions: none)
ERROR: No matching distribution found for six
py311: exit 1 (8.23 seconds) /project/py> python -I -m pip install six pid=49
$ apt-get install -y hello [100]
W: Problem unlinking the file /var/cache/apt/archives/partial/hello_2.10-3_amd64.deb - PrepareFiles (13: Permission denied)
E: Failed to fetch http://deb.example.org/debian/pool/main/h/hello/hello_2.10-3_amd64.deb  Temporary failure resolving 'deb.example.org'
E: Unable to fetch some archives, maybe run apt-get update or try with --fix-missing?
$ ansible -i example.com, all -m ping [4]
    "changed": false,
    "msg": "Failed to connect to the host via ssh: ssh: Could not resolve hostname example.com: Temporary failure in name resolution",
    "unreachable": true
}
$ playwright-core install chromium [1]
Downloading Chrome for Testing 159.0.8154.6 (playwright chromium v1255) from https://cdn.playwright.dev/builds/cft/159.0.8154.6/linux64/chrome-linux64.zip
Error: getaddrinfo EAI_AGAIN cdn.playwright.dev
  code: 'EAI_AGAIN',
$ python urllib_get.py [1]
    raise URLError(err)
urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>
$ python requests_get.py [1]
    raise ConnectionError(e, request=request)
requests.exceptions.ConnectionError: HTTPSConnectionPool(host='example.com', port=443): Max retries exceeded with url: / (Caused by NameResolutionError("HTTPSConnection(host='example.com', port=443): Failed to resolve 'example.com' ([Errno -3] Temporary failure in name resolution)"))
$ python httpx_get.py [1]
    raise mapped_exc(message) from exc
httpx.ConnectError: [Errno -3] Temporary failure in name resolution
$ python aiohttp_get.py [1]
    raise ClientConnectorDNSError(req.connection_key, exc) from exc
aiohttp.client_exceptions.ClientConnectorDNSError: Cannot connect to host example.com:443 ssl:default [Temporary failure in name resolution]
$ python socket_ip.py [1]
    sock.connect(sa)
OSError: [Errno 101] Network is unreachable
$ python boto_net.py [1]
    raise EndpointConnectionError(endpoint_url=request.url, error=e)
botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://s3.eu-west-1.amazonaws.com/"
$ python selenium_c.py [1]
selenium.common.exceptions.WebDriverException: Message: Unsuccessful command executed: /venv/lib/python3.11/site-packages/selenium/webdriver/common/linux-x86_64/selenium-manager --browser chrome --language-binding python --output json; code: 65
{'code': 65, 'message': 'error sending request for url (https://googlechromelabs.github.io/chrome-for-testing/last-known-good-versions-with-downloads.json)', 'driver_path': '', 'browser_path': ''}
$ node fetch.mjs [1]
  [cause]: Error: getaddrinfo EAI_AGAIN example.com
    code: 'EAI_AGAIN',
$ node net6.js [1]
Error: connect ENETUNREACH 10.0.0.5:80 - Local (0.0.0.0:0)
$ java Get.java [1]
Exception in thread "main" java.net.UnknownHostException: example.com
$ java SockIp.java [1]
Exception in thread "main" java.net.SocketException: Network is unreachable
$ ruby get.rb [1]
/usr/lib/ruby/3.1.0/socket.rb:227:in `getaddrinfo': getaddrinfo: Temporary failure in name resolution (SocketError)
$ php get.php [255]
Warning: file_get_contents(https://example.com/x): Failed to open stream: php_network_getaddresses: getaddrinfo for example.com failed: Temporary failure in name resolution in /project/misc/get.php on line 1
Fatal error: Uncaught Error: Class "PDO" not found in /project/misc/get.php:1
Stack trace:
$ pytest tests/test_net.py [1]
=========================== short test summary info ============================
FAILED tests/test_net.py::test_requests - requests.exceptions.ConnectionError...
============================== 1 failed in 0.13s ===============================
$ make all [2]
curl -fsS https://example.com/x -o x
curl: (6) Could not resolve host: example.com
$ npm ci [1]
npm error code EAI_AGAIN
npm error syscall getaddrinfo
npm error errno EAI_AGAIN
npm error request to https://registry.example.org/left-pad/-/left-pad-1.3.0.tgz failed, reason: getaddrinfo EAI_AGAIN registry.example.org
$ npx --yes tsc [1]
npm error code EAI_AGAIN
npm error syscall getaddrinfo
npm error errno EAI_AGAIN
npm error request to https://registry.example.org/tsc failed, reason: getaddrinfo EAI_AGAIN registry.example.org
$ gh api user [1]
error connecting to api.github.com
check your internet connection or https://githubstatus.com
$ mosquitto_pub -h example.com -t a -m b [1]
Unable to connect (Lookup error.).
$ http GET https://example.com [1]
http: LogLevel.ERROR: gaierror: [Errno -3] Temporary failure in name resolution
Couldn’t connect to a DNS server. Please check your connection and try again.
$ aria2c -m 1 https://example.com/f [19]
Exception: [AbstractCommand.cc:351] errorCode=19 URI=https://example.com/f
  -> [AbstractCommand.cc:799] errorCode=19 CUID#7 - Name resolution for example.com failed:No address returned
11/17 20:11:31 [NOTICE] Download GID#7ac11931c16c25e2 not complete:
$ svn co https://svn.example.com/x /tmp/x [1]
svn: E170013: Unable to connect to a repository at URL 'https://svn.example.com/x'
svn: E670003: Temporary failure in name resolution
$ hg clone https://hg.example.com/x /tmp/x [255]
abort: error: Temporary failure in name resolution
$ gpg --keyserver keys.openpgp.org --recv-keys 0x7f00ABCDEF [2]
gpg: directory '/home/dev/.gnupg' created
gpg: keybox '/home/dev/.gnupg/pubring.kbx' created
gpg: keyserver receive failed: Network is unreachable
$ bash -c 'echo > /dev/tcp/example.com/80' [1]
bash: line 1: example.com: Temporary failure in name resolution
bash: line 1: /dev/tcp/example.com/80: Invalid argument
$ corepack yarn@4 install [1]
    [cause]: Error: getaddrinfo EAI_AGAIN registry.example.org
      code: 'EAI_AGAIN',
$ python -m build [1]
  Temporary failure in name resolution')': /simple/setuptools/
< ERROR: Could not find a version that satisfies the requirement
  setuptools>=40.8.0 (from versions: none)
< ERROR: No matching distribution found for setuptools>=40.8.0
$ hatch env create [1]
      WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by 'NameResolutionError("HTTPSConnection(host='packages.example.org', port=443): Failed to resolve 'packages.example.org' ([Errno -3] Temporary failure in name resolution)")': /simple/setuptools/
      ERROR: Could not find a version that satisfies the requirement setuptools>=40.8.0 (from versions: none)
      ERROR: No matching distribution found for setuptools>=40.8.0
      [end of output]
$ pip install git+https://github.com/example/x.git [1]
  Running command git clone --filter=blob:none --quiet https://github.com/example/x.git /tmp/pip-req-build-h0p6nmzb
  fatal: unable to access 'https://github.com/example/x.git/': Could not resolve host: github.com
  error: subprocess-exited-with-error
  × git clone --filter=blob:none --quiet https://github.com/example/x.git /tmp/pip-req-build-h0p6nmzb did not run successfully.
$ openssl s_client -connect example.com:443 </dev/null [1]
800B6B2D807F0000:error:10080002:BIO routines:BIO_lookup_ex:system lib:../crypto/bio/bio_addr.c:746:Temporary failure in name resolution
connect:errno=11
$ pip install --target /tmp/run/t six [1]
WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by 'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f00>: Failed to establish a new connection: [Errno -2] Name or service not known')': /simple/six/
ERROR: Could not find a version that satisfies the requirement six (from versions: none)
ERROR: No matching distribution found for six
$ go mod download [1]
go: github.com/pkg/errors@v0.9.1: Get "https://proxy.example.org/github.com/pkg/errors/@v/v0.9.1.mod": dial tcp: lookup proxy.example.org on 10.0.0.53:53: dial udp 10.0.0.53:53: socket: permission denied
$ go mod download [1]
go: github.com/pkg/errors@v0.9.1: Get "https://proxy.example.org/github.com/pkg/errors/@v/v0.9.1.mod": dial tcp: lookup proxy.example.org on [::1]:53: read udp [::1]:48784->[::1]:53: read: connection refused
$ python requests_get.py [1]
requests.exceptions.ConnectionError: HTTPSConnectionPool(host='example.com', port=443): Max retries exceeded with url: / (Caused by NameResolutionError("HTTPSConnection(host='example.com', port=443): Failed to resolve 'example.com' ([Errno -3] Temporary failure in name resolution)"))
$ terraform init -no-color [1]
Could not retrieve the list of available versions for provider
hashicorp/random: could not connect to registry.terraform.io: failed to
request discovery document: Get
"https://registry.terraform.io/.well-known/terraform.json": dial tcp: lookup
$ mvn -q -B compile [1]
[ERROR] Plugin org.apache.maven.plugins:maven-resources-plugin:2.6 or one of its dependencies could not be resolved: Failed to read artifact descriptor for org.apache.maven.plugins:maven-resources-plugin:jar:2.6: Could not transfer artifact org.apache.maven.plugins:maven-resources-plugin:pom:2.6 from/to central (https://repo.example.org/maven2): transfer failed for https://repo.example.org/maven2/org/apache/maven/plugins/maven-resources-plugin/2.6/maven-resources-plugin-2.6.pom: Unknown host repo.example.org: Temporary failure in name resolution -> [Help 1]
[ERROR] To see the full stack trace of the errors, re-run Maven with the -e switch.
$ mysql -h db.example.com -e 'select 1' [1]
ERROR 2005 (HY000): Unknown server host 'db.example.com' (-3)
$ deno run -A fetch.mjs [1]
Caused by: Error: error sending request for url (https://example.com/): client error (Connect): dns error: failed to lookup address information: Temporary failure in name resolution
$ deno run -A npm:cowsay [1]
Download https://registry.example.org/cowsay
error: Failed loading https://registry.example.org/cowsay for package "cowsay"
Caused by:
    error sending request for url (https://registry.example.org/cowsay): client error (Connect): dns error: failed to lookup address information: Temporary failure in name resolution
$ yarn install --network-timeout 1000 [1]
[1/4] Resolving packages...
error Error: getaddrinfo EAI_AGAIN registry.example.com
info Visit https://yarn.example.com/en/docs/cli/install for documentation about this command.
$ bun install [1]
bun install v1.4.4 (38afee6c8)
[0.39ms] migrated lockfile from package-lock.json
error: DNSResolveFailed downloading tarball left-pad@1.3.0
$ bun run fetch.mjs [1]
TypeError: getaddrinfo EAI_AGAIN example.com
     path: "https://example.com/",
 hostname: "example.com",
$ python -c 'import dns.resolver; dns.resolver.resolve("example.com")' [1]
    raise NoNameservers(request=self.request, errors=self.errors)
dns.resolver.NoNameservers: All nameservers failed to answer the query example.com. IN A: Server Do53:10.0.0.53@53 answered [Errno 101] Network is unreachable
$ npm audit [1]
npm warn audit request to https://registry.example.org/-/npm/v1/security/advisories/bulk failed, reason: getaddrinfo EAI_AGAIN registry.example.org
undefined
npm error audit endpoint returned an error
$ ansible-galaxy collection install community.general [1]
[Errno -3] Temporary failure in name resolution>
ERROR! Unknown error when attempting to call Galaxy at 'https://galaxy.ansible.com/api/': <urlopen error [Errno -3] Temporary failure in name resolution>. <urlopen error [Errno -3] Temporary failure in name resolution>
Starting galaxy collection install process
Process install dependency map
$ pytest -q tests/test_requests.py [1]
>           raise ConnectionError(e, request=request)
E           requests.exceptions.ConnectionError: HTTPConnectionPool(host='10.255.255.1', port=80): Max retries exceeded with url: / (Caused by NewConnectionError("HTTPConnection(host='10.255.255.1', port=80): Failed to establish a new connection: [Errno 101] Network is unreachable"))
src/requests/adapters.py:729: ConnectionError
=========================== short test summary info ============================
FAILED tests/test_requests.py::TestTimeout::test_connect_timeout[timeout0] - ...
FAILED tests/test_requests.py::TestTimeout::test_connect_timeout[timeout1] - ...
""",
    SERVICE: r"""
$ git ls-remote http://127.0.0.1:3000/x.git [128]
fatal: unable to access 'http://127.0.0.1:3000/x.git/': Failed to connect to 127.0.0.1 port 3000 after 0 ms: Couldn't connect to server
$ curl -fsS http://127.0.0.1:8000/health [7]
curl: (7) Failed to connect to 127.0.0.1 port 8000 after 0 ms: Couldn't connect to server
$ wget -t 1 http://127.0.0.1:8000/ -O /tmp/f [4]
Connecting to 127.0.0.1:8000... failed: Connection refused.
$ ssh dev@127.0.0.1 [255]
ssh: connect to host 127.0.0.1 port 22: Connection refused
$ nc -vz 127.0.0.1 5432 [1]
nc: connect to 127.0.0.1 port 5432 (tcp) failed: Connection refused
$ telnet localhost 25 [1]
telnet: Unable to connect to remote host: Connection refused
Trying 127.0.0.1...
$ psql -h localhost -U app app -c 'select 1' [2]
psql: error: connection to server at "localhost" (127.0.0.1), port 5432 failed: Connection refused
    Is the server running on that host and accepting TCP/IP connections?
$ psql -c 'select 1' [2]
psql: error: connection to server on socket "/var/run/postgresql/.s.PGSQL.5432" failed: No such file or directory
    Is the server running locally and accepting connections on that socket?
$ pg_isready [2]
/var/run/postgresql:5432 - no response
$ redis-cli ping [1]
Could not connect to Redis at 127.0.0.1:6379: Connection refused
$ mysql -u root -h 127.0.0.1 -e 'select 1' [1]
ERROR 2002 (HY000): Can't connect to server on '127.0.0.1' (115)
$ mysql -u root -e 'select 1' [1]
ERROR 2002 (HY000): Can't connect to local server through socket '/run/mysqld/mysqld.sock' (2)
$ kubectl get pods [1]
E1117 20:02:27.650930       2 memcache.go:265] "Unhandled Error" err="couldn't get current server API group list: Get \"http://localhost:8080/api?timeout=32s\": dial tcp 127.0.0.1:8080: connect: connection refused"
The connection to the server localhost:8080 was refused - did you specify the right host or port?
$ mosquitto_pub -h 127.0.0.1 -t a -m b [1]
Error: Connection refused
$ systemctl status [1]
System has not been booted with systemd as init system (PID 1). Can't operate.
Failed to connect to bus: Host is down
$ systemctl --user status [1]
Failed to connect to bus: No medium found
$ python requests_local.py [1]
    raise ConnectionError(e, request=request)
requests.exceptions.ConnectionError: HTTPConnectionPool(host='localhost', port=8000): Max retries exceeded with url: /health (Caused by NewConnectionError("HTTPConnection(host='localhost', port=8000): Failed to establish a new connection: [Errno 111] Connection refused"))
$ python aiohttp_local.py [1]
    raise client_error(req.connection_key, exc) from exc
aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host 127.0.0.1:8000 ssl:default [Connect call failed ('127.0.0.1', 8000)]
$ python asyncio_open.py [1]
    raise OSError(err, f'Connect call failed {address}')
ConnectionRefusedError: [Errno 111] Connect call failed ('127.0.0.1', 6379)
$ python pymongo_ping.py [1]
    raise ServerSelectionTimeoutError(
pymongo.errors.ServerSelectionTimeoutError: localhost:27017: [Errno 111] Connection refused (configured timeouts: socketTimeoutMS: 20000.0ms, connectTimeoutMS: 20000.0ms), Timeout: 1.5s, Topology Description: <TopologyDescription id: 6afcb3f9350a17b7bcff48f1, topology_type: Unknown, servers: [<ServerDescription ('localhost', 27017) server_type: Unknown, rtt: None, error=AutoReconnect('localhost:27017: [Errno 111] Connection refused (configured timeouts: socketTimeoutMS: 20000.0ms, connectTimeoutMS: 20000.0ms)')>]>
$ python pymysql_c.py [1]
    raise exc
pymysql.err.OperationalError: (2003, "Can't connect to MySQL server on '127.0.0.1' ([Errno 111] Connection refused)")
$ python psycopg_c.py [1]
    raise last_ex.with_traceback(None)
psycopg.OperationalError: connection failed: connection to server at "127.0.0.1", port 5432 failed: Connection refused
    Is the server running on that host and accepting TCP/IP connections?
$ python psycopg_sock.py [1]
psycopg2.OperationalError: connection to server on socket "/var/run/postgresql/.s.PGSQL.5432" failed: No such file or directory
    Is the server running locally and accepting connections on that socket?
$ python redis_c.py [1]
    raise e
redis.exceptions.ConnectionError: Error 111 connecting to localhost:6379. Connection refused.
$ python es_c.py [1]
    raise err from e
elastic_transport.ConnectionError: Connection error
$ python pika_c.py [1]
    raise self._reap_last_connection_workflow_error(error)
pika.exceptions.AMQPConnectionError
$ python kafka_c.py [1]
    raise Errors.KafkaTimeoutError(
kafka.errors.KafkaTimeoutError: KafkaTimeoutError: Unable to bootstrap from localhost:9092
$ python smtp_c.py [1]
    sock.connect(sa)
ConnectionRefusedError: [Errno 111] Connection refused
$ python django_test.py [1]
    raise last_ex.with_traceback(None)
django.db.utils.OperationalError: connection failed: connection to server at "127.0.0.1", port 5432 failed: Connection refused
    Is the server running on that host and accepting TCP/IP connections?
$ python unittest_net.py [1]
    sock.connect(sa)
ConnectionRefusedError: [Errno 111] Connection refused
During handling of the above exception, another exception occurred:
$ node fetchlocal.mjs [1]
  [cause]: Error: connect ECONNREFUSED 127.0.0.1:3000
    code: 'ECONNREFUSED',
$ node net.js [1]
Error: connect ECONNREFUSED 127.0.0.1:5432
Emitted 'error' event on Socket instance at:
$ node axios.mjs [1]
  },
  [cause]: Error: connect ECONNREFUSED 127.0.0.1:3000
    code: 'ECONNREFUSED',
$ node pg.cjs [1]
Error: connect ECONNREFUSED 127.0.0.1:5432
  code: 'ECONNREFUSED',
$ node mongo.cjs [1]
    beforeHandshake: false,
    [cause]: Error: connect ECONNREFUSED 127.0.0.1:27017
      code: 'ECONNREFUSED',
$ jest --rootDir . net.test.js [1]
    Cause:
        connect ECONNREFUSED 127.0.0.1:3000
Test Suites: 1 failed, 1 total
Tests:       1 failed, 1 total
$ vitest run --globals net.test.js [1]
Caused by: Error: connect ECONNREFUSED 127.0.0.1:3000
⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯
Serialized Error: { errno: -111, code: 'ECONNREFUSED', syscall: 'connect', address: '127.0.0.1', port: 3000 }
⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯[1/1]⎯
$ java Sock.java [1]
Exception in thread "main" java.net.ConnectException: Connection refused
$ ruby sock.rb [1]
sock.rb:2:in `initialize': Connection refused - connect(2) for "127.0.0.1" port 5432 (Errno::ECONNREFUSED)
$ perl get.pl [111]
connect: Connection refused at get.pl line 1.
$ go run net.go [1]
Get "http://localhost:8080/": dial tcp 127.0.0.1:8080: connect: connection refused
exit status 1
$ ./netc [1]
connect: Connection refused
$ ./rs_net [101]
thread 'main' (2) panicked at net.rs:2:49:
called `Result::unwrap()` on an `Err` value: Os { code: 111, kind: ConnectionRefused, message: "Connection refused" }
$ pytest -q --tb=short tests/test_db.py [1]
FAILED tests/test_db.py::test_pg2 - psycopg2.OperationalError: connection to ...
FAILED tests/test_db.py::test_redis - redis.exceptions.ConnectionError: Error...
3 failed in 4.16s
$ pytest -q --tb=line tests/test_db.py [1]
FAILED tests/test_db.py::test_pg2 - psycopg2.OperationalError: connection to ...
FAILED tests/test_db.py::test_redis - redis.exceptions.ConnectionError: Error...
3 failed in 2.48s
$ pytest -q --tb=no tests/test_db.py [1]
FAILED tests/test_db.py::test_pg2 - psycopg2.OperationalError: connection to ...
FAILED tests/test_db.py::test_redis - redis.exceptions.ConnectionError: Error...
3 failed in 3.24s
$ notify-send hi [1]
Cannot autolaunch D-Bus without X11 $DISPLAY
$ dbus-send --session --print-reply --dest=org.freedesktop.DBus / org.freedesktop.DBus.ListNames [1]
Failed to open connection to "session" message bus: Unable to autolaunch a dbus-daemon without a $DISPLAY for X11
$ dbus-send --system --print-reply --dest=org.freedesktop.DBus / org.freedesktop.DBus.ListNames [1]
Failed to open connection to "system" message bus: Failed to connect to socket /run/dbus/system_bus_socket: No such file or directory
$ busctl list [1]
Failed to connect to bus: No such file or directory
$ ssh-add -l [2]
Could not open a connection to your authentication agent.
$ ssh-add -l [2]
Error connecting to agent: No such file or directory
$ python -c 'import tkinter; tkinter.Tk()' [1]
Traceback (most recent call last):
    self.tk = _tkinter.create(screenName, baseName, className, interactive, wantobjects, useTk, sync, use)
_tkinter.TclError: no display name and no $DISPLAY environment variable
$ socat - TCP:127.0.0.1:5432 [1]
2026/11/17 20:11:32 socat[2] E connect(5, AF=2 127.0.0.1:5432, 16): Connection refused
$ socat - UNIX-CONNECT:/run/app.sock [1]
2026/11/17 20:11:32 socat[2] E connect(, AF=1 "/run/app.sock", 15): No such file or directory
$ openssl s_client -connect 127.0.0.1:443 </dev/null [1]
809B8F30877F0000:error:8000006F:system library:BIO_connect:Connection refused:../crypto/bio/bio_sock2.c:117:calling connect()
809B8F30877F0000:error:10000067:BIO routines:BIO_connect:connect error:../crypto/bio/bio_sock2.c:119:
connect:errno=111
$ python psycopg_c.py [1]
Traceback (most recent call last):
    psycopg.connect("host=localhost dbname=app")
    raise last_ex.with_traceback(None)
psycopg.OperationalError: connection is bad: no error details available
$ pytest -q tests/test_db.py [1]
FAILED tests/test_db.py::test_pg2 - psycopg2.OperationalError
FAILED tests/test_db.py::test_redis - redis.exceptions.ConnectionError: Error...
3 failed, 1 warning in 3.82s
$ deno run -A fetchlocal.mjs [1]
Caused by: Error: error sending request for url (http://localhost:3000/api): client error (Connect): tcp connect error: Connection refused (os error 111)
$ bun run fetchlocal.mjs [1]
TypeError: ECONNREFUSED: Unable to connect. Is the computer able to access the url?
  path: "http://localhost:3000/api",
  code: "ECONNREFUSED"
Bun v1.4.4 (Linux x64)
$ bun test net.test.js [1]
TypeError: ECONNREFUSED: Unable to connect. Is the computer able to access the url?
  path: "http://localhost:3000/health",
  code: "ECONNREFUSED"
$ python -c 'import asyncio,asyncpg; asyncio.run(asyncpg.connect("postgresql://app@localhost/app"))' [1]
    raise OSError(err, f'Connect call failed {address}')
ConnectionRefusedError: [Errno 111] Connect call failed ('127.0.0.1', 5432)
$ python -c 'import paramiko; paramiko.SSHClient().connect("127.0.0.1")' [1]
Traceback (most recent call last):
    raise NoValidConnectionsError(errors)
paramiko.ssh_exception.NoValidConnectionsError: [Errno None] Unable to connect to port 22 on 127.0.0.1
$ python -c 'import grpc; grpc.insecure_channel("localhost:50051").unary_unary("/a/b")(b"")' [1]
    details = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:50051: Failed to connect to remote host: Connection refused"
    debug_error_string = "UNAVAILABLE:failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:50051: Failed to connect to remote host: Connection refused"
>
$ pg_dump -h localhost app [1]
pg_dump: error: connection to server at "localhost" (127.0.0.1), port 5432 failed: Connection refused
    Is the server running on that host and accepting TCP/IP connections?
$ redis-benchmark -n 1 [124]
Could not connect to Redis at 127.0.0.1:6379: Connection refused
WARNING: Could not fetch server CONFIG
$ podman --remote ps [125]
Cannot connect to Podman. Please verify your connection to the Linux system using `podman system connection list`, or try `podman machine init` and `podman machine start` to manage a new Linux VM
Error: unable to connect to Podman socket: Get "http://d/v4.3.1/libpod/_ping": dial unix ///run/user/1000/podman/podman.sock: connect: no such file or directory
$ pytest -q -x tests/test_commands.py [1]
            )
>           raise e
E           redis.exceptions.ConnectionError: Error 111 connecting to localhost:6379. Connection refused.
redis/connection.py:1077: ConnectionError
=============================== warnings summary ===============================
../../../venv/lib/python3.11/site-packages/_pytest/config/__init__.py:2489
../../../venv/lib/python3.11/site-packages/_pytest/config/__init__.py:2489
""",
    WRITE: r"""
$ rustup update stable [1]
info: syncing channel updates for stable-x86_64-unknown-linux-gnu
error: could not create temp file /home/dev/.rustup/tmp/mrvzv6celk_r03qy_file: Read-only file system (os error 30)
$ git fetch [255]
error: cannot open '.git/FETCH_HEAD': Read-only file system
$ python open_etc.py [1]
Traceback (most recent call last):
    open("/etc/app.conf", "w").write("x")
OSError: [Errno 30] Read-only file system: '/etc/app.conf'
$ python sqlite_new.py [1]
Traceback (most recent call last):
    sqlite3.connect("/var/lib/new.db").execute("create table a(b)")
sqlite3.OperationalError: unable to open database file
$ python sqlite_w.py [1]
Traceback (most recent call last):
    c = sqlite3.connect("../app.db"); c.execute("insert into t values(1)"); c.commit()
sqlite3.OperationalError: attempt to write a readonly database
$ python open_w.py [1]
Traceback (most recent call last):
    open("out.txt", "w").write("x")
OSError: [Errno 30] Read-only file system: 'out.txt'
$ node writeetc.js [1]
Error: ENOENT: no such file or directory, mkdir '/opt/app/x'
$ node write.js [1]
  code: 'EROFS',
  path: 'dist.js'
}
$ java Wr.java [1]
Exception in thread "main" java.io.FileNotFoundException: /etc/app.conf (Read-only file system)
$ java WrNio.java [1]
Exception in thread "main" java.nio.file.FileSystemException: out.txt: Read-only file system
$ ruby wr.rb [1]
wr.rb:1:in `write': Read-only file system @ rb_sysopen - /etc/app.conf (Errno::EROFS)
$ perl wr.pl [30]
Cannot open /etc/app.conf: Read-only file system at wr.pl line 1.
$ php wr.php [1]
Warning: file_put_contents(/etc/app.conf): Failed to open stream: Read-only file system in /project/misc/wr.php on line 1
$ go run wr.go [1]
panic: open /etc/app.conf: read-only file system
main.main()
    /project/misc/wr.go:3 +0x5a
exit status 2
$ ./rs_wr [101]
thread 'main' (2) panicked at wr.rs:1:48:
cannot save: Os { code: 30, kind: ReadOnlyFilesystem, message: "Read-only file system" }
$ pytest -q tests/test_write.py [1]
=========================== short test summary info ============================
FAILED tests/test_write.py::test_write - OSError: [Errno 30] Read-only file s...
1 failed in 0.02s
$ make install [2]
cp a.c /usr/local/bin/a.c
cp: cannot create regular file '/usr/local/bin/a.c': Read-only file system
make: *** [Makefile:4: install] Error 1
$ make out [2]
gcc a.c -o /usr/local/a
/usr/bin/ld: cannot open output file /usr/local/a: Read-only file system
collect2: error: ld returned 1 exit status
make: *** [Makefile:6: out] Error 1
$ gcc a.c -o a.out [1]
/usr/bin/ld: cannot open output file a.out: Read-only file system
collect2: error: ld returned 1 exit status
$ gcc -c a.c [1]
Assembler messages:
Fatal error: can't create a.o: Read-only file system
$ ar rcs lib.a a.c [1]
ar: lib.a: Read-only file system
$ touch new.txt [1]
touch: cannot touch 'new.txt': Read-only file system
$ mkdir build [1]
mkdir: cannot create directory ‘build’: Read-only file system
$ cp a.txt b.txt [1]
cp: cannot create regular file 'b.txt': Read-only file system
$ mv a.txt /etc/a.txt [1]
mv: inter-device move failed: 'a.txt' to '/etc/a.txt'; unable to remove target: Read-only file system
$ rm a.txt [1]
rm: cannot remove 'a.txt': Read-only file system
$ ln -s a.txt l [1]
ln: failed to create symbolic link 'l': Read-only file system
$ chmod +x a.txt [1]
chmod: changing permissions of 'a.txt': Read-only file system
$ sed -i s/hello/bye/ a.txt [4]
sed: couldn't open temporary file ./sedgF1xol: Read-only file system
$ echo x > a.txt [1]
bash: line 1: a.txt: Read-only file system
$ sh -c 'echo x > a.txt' [2]
sh: 1: cannot create a.txt: Read-only file system
$ tee out.txt < a.txt [1]
tee: out.txt: Read-only file system
hello
$ tar cf out.tar a.txt [2]
tar: out.tar: Cannot open: Read-only file system
tar: Error is not recoverable: exiting now
$ zip out.zip a.txt [15]
zip I/O error: Read-only file system
zip error: Could not create output file (out.zip)
$ gzip a.txt [1]
gzip: a.txt.gz: Read-only file system
$ dd if=/dev/zero of=x bs=1 count=1 [1]
dd: failed to open 'x': Read-only file system
$ truncate -s 0 a.txt [1]
truncate: cannot open 'a.txt' for writing: Read-only file system
$ install -m 755 a.txt b.txt [1]
install: cannot create regular file 'b.txt': Read-only file system
$ sort -o a.txt a.txt [2]
sort: open failed: a.txt: Read-only file system
$ rsync -a a.txt /opt/ [23]
rsync: [receiver] mkstemp "/opt/.a.txt.27IPFb" failed: Read-only file system (30)
rsync error: some files/attrs were not transferred (see previous errors) (code 23) at main.c(1347) [sender=3.2.7]
$ sqlite3 app.db 'insert into t values(1)' [8]
Error: stepping, attempt to write a readonly database (8)
$ sqlite3 new.db 'create table x(a)' [1]
Error: unable to open database "new.db": unable to open database file
$ git commit --allow-empty -m x [128]
fatal: Unable to create '/project/.git/index.lock': Read-only file system
$ git checkout -b feature [128]
fatal: cannot lock ref 'refs/heads/feature': Unable to create '/project/.git/refs/heads/feature.lock': Read-only file system
$ git config user.name x [255]
error: could not lock config file .git/config: Read-only file system
$ git gc [128]
fatal: Unable to create '/project/.git/gc.pid.lock': Read-only file system
$ npm install [226]
npm error errno -30
npm error rofs EROFS: read-only file system, rename '/project/js/node_modules/left-pad' -> '/project/js/node_modules/.left-pad-uUgj20AF'
npm error rofs Often virtualized file systems, or other file systems that don't support symlinks, give this error.
$ tsc --outDir dist --allowJs ../jsx/net.js [2]
error TS5033: Could not write file '/project/js/dist/net.js': mkdir /project/js/dist: read-only file system.
$ python -m venv venv2 [1]
Error: [Errno 30] Read-only file system: '/project/py/venv2'
$ virtualenv v [2]
                  dest
virtualenv: error: argument dest: the destination . is not write-able at /project/py
SystemExit: 2
$ pip uninstall -y six [2]
    os.unlink(src)
OSError: [Errno 30] Read-only file system: '/venv/lib/python3.11/site-packages/__pycache__/six.cpython-311.pyc'
$ mypy ../tests/test_ok.py [2]
error: INTERNAL ERROR -- Please try using mypy master on GitHub:
https://mypy.readthedocs.io/en/stable/common_issues.html#using-a-development-mypy-build
If this issue continues with mypy master, please report a bug at https://github.com/python/mypy/issues
$ black ../tests/test_db.py [123]
error: cannot format ../tests/test_db.py: [Errno 30] Read-only file system: '../tests/test_db.py'
Oh no! 💥 💔 💥
1 file failed to reformat.
$ python -m py_compile ../tests/test_ok.py [1]
[Errno 30] Read-only file system: '../tests/__pycache__/test_ok.cpython-311.pyc.140429920384848'
$ pre-commit install [3]
An unexpected error has occurred: OSError: [Errno 30] Read-only file system: '.git/hooks/pre-commit'
Check the log at /home/dev/.cache/pre-commit/pre-commit.log
$ ssh-keygen -q -N '' -f key [1]
Saving key "key" failed: Read-only file system
$ openssl genrsa -out key.pem 512 [1]
genrsa: Can't open "key.pem" for writing, Read-only file system
$ apt-get remove -y curl [100]
W: Could not open file '/var/log/apt/eipp.log.xz' - EIPP::OrderInstall (17: File exists)
E: Could not create temporary file for /var/lib/apt/extended_states - mkstemp (30: Read-only file system)
E: Failed to write temporary StateFile /var/lib/apt/extended_states
E: Sub-process dpkg --set-selections returned an error code (2)
$ ldconfig [1]
ldconfig: Can't create temporary cache file /etc/ld.so.cache~: Read-only file system
$ rustup default stable [1]
info: using existing install for stable-x86_64-unknown-linux-gnu
error: could not write settings file: '/home/dev/.rustup/settings.toml': Read-only file system (os error 30)
$ corepack enable [1]
Internal Error: EROFS: read-only file system, symlink '../lib/node_modules/corepack/dist/pnpm.js' -> '/usr/bin/pnpm'
$ cmake -S /tmp -B build [1]
CMake Error: Unable to (re)create the private pkgRedirects directory:
/project/c/build/CMakeFiles/pkgRedirects
$ prettier --write fetch.mjs --tab-width 8 --no-semi [2]
fetch.mjs 25ms
[error] Unable to write file "fetch.mjs":
[error] EROFS: read-only file system, open '/project/jsx/fetch.mjs'
$ cargo build --target-dir /opt/target [101]
cp: cannot overwrite non-directory '/dev/null' with directory '.'
error: Read-only file system (os error 30) at path "/opt/targetUoPkrR"
$ javac Get.java [1]
Get.java:1: error: error while writing Get: /project/java/Get.class: Read-only file system
public class Get { public static void main(String[] a) throws Exception { new java.net.URL("https://example.com").openStream(); } }
1 error
$ python -m pytest --junitxml=/opt/r.xml -q tests/test_ok.py -k ok [1]
OSError: [Errno 30] Read-only file system: '/opt/r.xml'
$ echo x >> /etc/hosts [1]
bash: line 1: /etc/hosts: Read-only file system
$ cargo test [101]
error: failed to write /project/Cargo.lock

Caused by:
  failed to open: /project/Cargo.lock

Caused by:
  Permission denied (os error 13)
$ touch new.txt [1]
touch: cannot touch 'new.txt': Permission denied
$ mv a.txt b.txt [1]
mv: cannot move 'a.txt' to 'b.txt': Permission denied
$ sed -i s/hello/bye/ a.txt [4]
sed: couldn't open temporary file ./sedi7NF3I: Permission denied
$ sh -c 'echo x > a.txt' [2]
sh: 1: cannot create a.txt: Permission denied
$ git commit --allow-empty -m x [128]
fatal: Unable to create '/project/.git/index.lock': Permission denied
$ gcc a.c -o a.out [1]
/usr/bin/ld: cannot open output file a.out: Permission denied
collect2: error: ld returned 1 exit status
$ gcc -c a.c [1]
Assembler messages:
Fatal error: can't create a.o: Permission denied
$ uv pip install --target /tmp/run/t six [2]
error: Failed to initialize cache at `/home/dev/.cache/uv`
  cause: failed to create directory `/home/dev/.cache/uv`: Permission denied (os error 13)
$ npm install [243]
npm error errno -13
npm error Error: EACCES: permission denied, mkdir '/project/js/node_modules/left-pad'
$ node writeetc.js [1]
Error: EACCES: permission denied, mkdir '/opt/app/x'
$ javac Get.java [1]
Get.java:1: error: error while writing Get: /project/java/Get.class
public class Get { public static void main(String[] a) throws Exception { new java.net.URL("https://example.com").openStream(); } }
1 error
$ apt-get update [100]
Reading package lists...
E: Could not open lock file /var/lib/apt/lists/lock - open (13: Permission denied)
E: Unable to lock directory /var/lib/apt/lists/
$ tsc --outDir dist --allowJs jsx/net.js [2]
error TS5033: Could not write file '/project/dist/net.js': mkdir /project/dist: permission denied.
$ deno run -A dw.ts [1]
error: Uncaught (in promise) Error: Read-only file system (os error 30): writefile '/etc/app.conf'
Deno.writeTextFileSync("/etc/app.conf","x")
$ bun add left-pad [1]
EROFS: Read-only file system: could not open "/project/js/package.json" (open)
error: An internal error occurred (EROFS)
$ git archive -o /opt/a.tar HEAD [128]
fatal: could not open '/opt/a.tar' for writing: Read-only file system
$ git bundle create /opt/a.bundle HEAD [128]
fatal: Unable to create '/opt/a.bundle.lock': Read-only file system
$ split a.txt [1]
split: xaa: Read-only file system
$ xz -k a.txt [1]
xz: a.txt.xz: Read-only file system
$ strip netc [1]
strip: netc: could not create temporary file to hold stripped copy: cause of error unknown
$ jar cf x.jar Get.java [1]
java.nio.file.FileSystemException: x.jar: Read-only file system
$ esbuild fetch.mjs --outfile=o.js [1]
✘ [ERROR] Failed to write to output file: open /project/jsx/o.js: read-only file system
1 error
  o.js  36b
⚡ Done in 3ms
$ csplit a.txt 1 [1]
csplit: xx00: Read-only file system
$ mktemp -p . [1]
mktemp: failed to create file via template ‘./tmp.XXXXXXXXXX’: Read-only file system
$ ruby -e 'Dir.mkdir("x")' [1]
-e:1:in `mkdir': Read-only file system @ dir_s_mkdir - x (Errno::EROFS)
$ mkfifo x [1]
mkfifo: cannot create fifo 'x': Permission denied
""",
    SOCKET: r"""
$ ping -c1 -W1 example.com [2]
ping: socktype: SOCK_RAW
ping: socket: Operation not permitted
ping: => missing cap_net_raw+p capability or setuid?
$ python raw.py [1]
Traceback (most recent call last):
    socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)
    _socket.socket.__init__(self, family, type, proto, fileno)
PermissionError: [Errno 1] Operation not permitted
$ python port80.py [1]
    self.socket.bind(self.server_address)
PermissionError: [Errno 13] Permission denied
$ node listen80.js [1]
Error: listen EACCES: permission denied 127.0.0.1:80
$ tcpdump -c1 -i lo [1]
tcpdump: lo: You don't have permission to perform this capture on that device
(socket: Operation not permitted)
$ ruby -run -e httpd . -p 80 [1]
[2026-11-17 20:13:56] INFO  ruby 3.1.2 (2022-04-12) [x86_64-linux-gnu]
/usr/lib/ruby/3.1.0/socket.rb:201:in `bind': Permission denied - bind(2) for [::]:80 (Errno::EACCES)
$ wget -t 1 http://127.0.0.1:1 -O /tmp/run/f [4]
Connecting to 127.0.0.1:1... failed: Permission denied.
Giving up.
$ ssh dev@127.0.0.1 [255]
socket: Permission denied
ssh: connect to host 127.0.0.1 port 22: failure
$ ip link [1]
Cannot open netlink socket: Permission denied
$ psql -h 127.0.0.1 -c 'select 1' [2]
psql: error: connection to server at "127.0.0.1", port 5432 failed: could not create socket: Permission denied
$ mysql -h 127.0.0.1 -e 'select 1' [1]
ERROR 2004 (HY000): Can't create TCP/IP socket (13)
$ kubectl get pods [1]
E1117 20:16:10.573499   12063 memcache.go:265] "Unhandled Error" err="couldn't get current server API group list: Get \"http://localhost:8080/api?timeout=32s\": dial tcp 127.0.0.1:8080: socket: permission denied"
Unable to connect to the server: dial tcp 127.0.0.1:8080: socket: permission denied
$ yarn install [1]
➤ YN0000: ┌ Resolution step
➤ YN0001: │ SystemError [ERR_SYSTEM_ERROR]: left-pad@npm:1.3.0: A system error occurred: uv_interface_addresses returned Unknown system error 13 (Unknown system error 13)
$ python requests_local.py [1]
    raise ConnectionError(e, request=request)
requests.exceptions.ConnectionError: HTTPConnectionPool(host='localhost', port=8000): Max retries exceeded with url: /health (Caused by NewConnectionError("HTTPConnection(host='localhost', port=8000): Failed to establish a new connection: [Errno 13] Permission denied"))
$ python socket_ip.py [1]
    _socket.socket.__init__(self, family, type, proto, fileno)
PermissionError: [Errno 13] Permission denied
$ python redis_c.py [1]
    raise e
redis.exceptions.ConnectionError: Error 13 connecting to localhost:6379. Permission denied.
$ node fetchlocal.mjs [1]
  [cause]: Error: connect EACCES 127.0.0.1:3000 - Local (undefined:undefined)
$ node listen.js [1]
Error: listen EACCES: permission denied 127.0.0.1
$ jest --rootDir . net.test.js [1]
    Cause:
        connect EACCES 127.0.0.1:3000 - Local (undefined:undefined)
Test Suites: 1 failed, 1 total
Tests:       1 failed, 1 total
$ java Sock.java [1]
Exception in thread "main" java.net.SocketException: Permission denied
$ ./netc [1]
socket: Permission denied
$ deno run -A fetchlocal.mjs [1]
Caused by: Error: error sending request for url (http://localhost:3000/api): client error (Connect): tcp open error: Permission denied (os error 13)
$ gunicorn -b 127.0.0.1:80 app:app [1]
[2026-11-17 20:54:56 +0000] [2] [ERROR] connection to ('127.0.0.1', 80) failed: [Errno 13] Permission denied
[2026-11-17 20:54:57 +0000] [2] [ERROR] connection to ('127.0.0.1', 80) failed: [Errno 13] Permission denied
[2026-11-17 20:54:58 +0000] [2] [ERROR] Can't connect to ('127.0.0.1', 80)
""",
    FILES: r"""
$ git status --short [128]
fatal: not a git repository: /home/me/project/.git/worktrees/other
$ lsblk [1]
lsblk: failed to access sysfs directory: /sys/dev/block: No such file or directory
$ useradd x [1]
useradd: Permission denied.
useradd: cannot lock /etc/passwd; try again later.
$ cat /etc/shadow [1]
cat: /etc/shadow: Permission denied
$ echo x > a.txt [1]
bash: line 1: a.txt: Permission denied
$ tar cf out.tar a.txt [2]
tar: out.tar: Cannot open: Permission denied
tar: Error is not recoverable: exiting now
$ gzip a.txt [1]
gzip: a.txt.gz: Permission denied
$ pnpm install [243]
 EACCES  EACCES: permission denied, open '/project/js/_tmp_17004_01b4f74f5652b9536a5e08e22c6b0dfe'
$ python open_w.py [1]
Traceback (most recent call last):
    open("out.txt", "w").write("x")
PermissionError: [Errno 13] Permission denied: 'out.txt'
$ node write.js [1]
Error: EACCES: permission denied, open 'dist.js'
$ java Wr.java [1]
Exception in thread "main" java.io.FileNotFoundException: /etc/app.conf (Permission denied)
$ java WrNio.java [1]
Exception in thread "main" java.nio.file.AccessDeniedException: out.txt
$ pytest -q tests/test_write.py [1]
>       open("/var/lib/app.txt","w")
E       PermissionError: [Errno 13] Permission denied: '/var/lib/app.txt'
tests/test_write.py:2: PermissionError
=============================== warnings summary ===============================
$ black ../tests/test_db.py [123]
error: cannot format ../tests/test_db.py: [Errno 13] Permission denied: '../tests/test_db.py'
Oh no! 💥 💔 💥
1 file failed to reformat.
""",
    OPERATION: r"""
$ python nice_c.py [1]
Traceback (most recent call last):
    os.nice(-5)
PermissionError: [Errno 1] Operation not permitted
$ ip link add dummy0 type dummy [2]
RTNETLINK answers: Operation not permitted
$ chroot /tmp ls [125]
chroot: cannot change root directory to '/tmp': Operation not permitted
$ dmesg [1]
dmesg: read kernel buffer failed: Operation not permitted
$ mknod x b 8 0 [1]
mknod: x: Operation not permitted
$ renice -n -5 1 [1]
renice: failed to set priority for 1 (process ID): Permission denied
$ chrt -f 10 true [1]
chrt: failed to set pid 0's policy: Operation not permitted
$ ./rs_net [101]
thread 'main' (17799) panicked at net.rs:2:49:
called `Result::unwrap()` on an `Err` value: Os { code: 13, kind: PermissionDenied, message: "Permission denied" }
$ mount -t tmpfs none /tmp/run/mm [32]
mount: /tmp/run/mm: permission denied.
       dmesg(1) may have more information after failed mount system call.
$ chattr +i a.txt [1]
chattr: Operation not permitted while setting flags on a.txt
$ setcap cap_net_raw+p a.txt [1]
unable to set CAP_SETFCAP effective capability: Operation not permitted
$ python -c 'import multiprocessing as m; m.Lock()' [1]
    sl = self._semlock = _multiprocessing.SemLock(
PermissionError: [Errno 13] Permission denied
""",
    USER: r"""
$ sudo ls [1]
sudo: The "no new privileges" flag is set, which prevents sudo from running as root.
sudo: If sudo is running in a container, you may need to adjust the container configuration to disable the flag.
$ umount /proc [32]
umount: /proc: must be superuser to unmount.
$ chown root a.txt [1]
chown: changing ownership of 'a.txt': Invalid argument
$ hostname foo [1]
hostname: you must be root to change the host name
$ dpkg -i /none.deb [2]
dpkg: error: requested operation requires superuser privilege
$ sudo ls [1]
sudo: /etc/sudo.conf is owned by uid 1000, should be 0
sudo: The "no new privileges" flag is set, which prevents sudo from running as root.
sudo: If sudo is running in a container, you may need to adjust the container configuration to disable the flag.
$ setpriv --reuid 5 true [127]
setpriv: setresuid failed: Invalid argument
$ runuser -u nobody true [1]
runuser: may not be used by non-root users
""",
    TRACE: r"""
$ strace ls [1]
strace: ptrace(PTRACE_TRACEME, ...): Operation not permitted
strace: PTRACE_SETOPTIONS: Operation not permitted
strace: detach: waitpid(18052): No child processes
strace: Process 18052 detached
$ gdb -batch -ex run /bin/ls [1]
warning: Could not trace the inferior process.
warning: ptrace: Operation not permitted
During startup program exited with code 127.
""",
    NAMESPACE: r"""
$ unshare -r id [1]
unshare: unshare failed: No space left on device
$ unshare -n id [1]
unshare: unshare failed: Operation not permitted
$ chromium --headless --no-first-run --dump-dom about:blank [1]
[3:3:1117/201246.389665:ERROR:content/browser/zygote_host/zygote_host_impl_linux.cc:128] No usable sandbox! If this is a Debian system, please install the chromium-sandbox package to solve this problem. If you are running on Ubuntu 23.10+ or another Linux distro that has disabled unprivileged user namespaces with AppArmor, see https://chromium.googlesource.com/chromium/src/+/main/docs/security/apparmor-userns-restrictions.md. If you want to live dangerously and need an immediate workaround, you can try using --no-sandbox.
$ bwrap --ro-bind / / true [1]
bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)
$ bwrap --ro-bind / / true [1]
bwrap: Failed to make / slave: Operation not permitted
$ nsenter -t 1 -n true [1]
nsenter: reassociate to namespace 'ns/net' failed: Operation not permitted
""",
    DEVICE: r"""
$ docker ps [1]
Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?
$ python docker_c.py [1]
    raise DockerException(
docker.errors.DockerException: Error while fetching server API version: ('Connection aborted.', FileNotFoundError(2, 'No such file or directory'))
$ python serial_c.py [1]
Traceback (most recent call last):
    os.open("/dev/ttyUSB0", os.O_RDWR)
FileNotFoundError: [Errno 2] No such file or directory: '/dev/ttyUSB0'
$ node unix.js [1]
Error: connect ENOENT /var/run/docker.sock
Emitted 'error' event on Socket instance at:
$ node spawn.js [1]
Error: Command failed: docker ps
Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?
$ losetup -f [1]
losetup: cannot find an unused loop device: No such device
$ dd if=/dev/vda of=/tmp/x count=1 [1]
dd: failed to open '/dev/vda': No such file or directory
$ ls /dev/kvm [2]
ls: cannot access '/dev/kvm': No such file or directory
$ qemu-system-x86_64 -enable-kvm -nographic -no-reboot -display none [1]
Could not access KVM kernel module: No such file or directory
qemu-system-x86_64: failed to initialize kvm: No such file or directory
$ fuse-overlayfs -o lowerdir=/tmp/a,upperdir=/tmp/b,workdir=/tmp/c /tmp/d [1]
fuse: device not found, try 'modprobe fuse' first
fuse-overlayfs: cannot mount: No such file or directory
$ docker run --rm alpine true [125]
docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?
Run 'docker run --help' for more information
$ docker ps [1]
Cannot connect to the Docker daemon at tcp://127.0.0.1:2375. Is the docker daemon running?
$ sshfs dev@example.com:/ /tmp/m [1]
fuse: device not found, try 'modprobe fuse' first
$ docker ps [1]
permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: Get "http://%2Fvar%2Frun%2Fdocker.sock/v1.50/containers/json": dial unix /var/run/docker.sock: socket: permission denied
$ python docker_c.py [1]
    raise DockerException(
docker.errors.DockerException: Error while fetching server API version: ('Connection aborted.', PermissionError(13, 'Permission denied'))
""",
    LOGIN: r"""
$ gh pr list [4]
To get started with GitHub CLI, please run:  gh auth login
Alternatively, populate the GH_TOKEN environment variable with a GitHub API authentication token.
$ gh auth status [1]
You are not logged into any GitHub hosts. Run gh auth login to authenticate.
$ python boto_c.py [1]
    raise NoCredentialsError()
botocore.exceptions.NoCredentialsError: Unable to locate credentials
$ npm publish [1]
npm notice
npm error code ENEEDAUTH
npm error need auth This command requires you to be logged in to https://registry.example.org/
npm error need auth You need to authorize this machine using `npm adduser`
$ kubectl config current-context [1]
error: current-context is not set
$ aws s3 ls [255]
Unable to locate credentials. You can configure credentials by running "aws configure".
$ gcloud compute instances list [1]
  $ gcloud auth login
to obtain new credentials.
$ hf auth whoami [1]
Hint: The `hf-cli` skill is not installed. Run `hf skills add -g` to teach your AI agents how to use the `hf` CLI.
Error: Not logged in. Run `hf auth login` first.
$ cat /home/dev/.ssh/id_rsa [1]
cat: /home/dev/.ssh/id_rsa: No such file or directory
""",
    LIMIT: r"""
$ dd if=/dev/zero of=/tmp/x bs=1k count=100 [153]
$ python -c 'open("/tmp/x","wb").write(b"a"*100000)' [1]
Traceback (most recent call last):
OSError: [Errno 27] File too large
$ node -e 'require("fs").writeFileSync("/tmp/x","a".repeat(100000))' [1]
Error: EFBIG: file too large, write
$ tar cf /tmp/x /usr/bin/bash [153]
tar: Removing leading `/' from member names
$ gcc a.c -o /tmp/x [1]
collect2: fatal error: ld terminated with signal 25 [File size limit exceeded]
compilation terminated.
$ python3 -c 'import subprocess; ps=[subprocess.Popen(["sleep","1"]) for _ in range(9)]' [1]
    self.pid = _fork_exec(
BlockingIOError: [Errno 11] Resource temporarily unavailable
$ python3 -c 'import threading,time; [threading.Thread(target=time.sleep,args=(1,)).start() for _ in range(9)]' [1]
Traceback (most recent call last):
    _start_new_thread(self._bootstrap, ())
RuntimeError: can't start new thread
$ node -e 'for(let i=0;i<9;i++) require("child_process").spawn("sleep",["1"])' [1]
Error: spawn sleep EAGAIN
$ make [254]
bash: fork: retry: Resource temporarily unavailable
bash: fork: Resource temporarily unavailable
$ java -version [1]
[0.003s][warning][os,thread] Failed to start thread "GC Thread#0" - pthread_create failed (EAGAIN) for attributes: stacksize: 1024k, guardsize: 4k, detached.
#
# There is insufficient memory for the Java Runtime Environment to continue.
# Cannot create worker GC thread. Out of system resources.
""",
    PROGRAM: r"""
$ zsh -c 'echo x > a.txt' [127]
bash: line 1: zsh: command not found
$ /home/dev/.local/bin/tool [127]
bash: line 1: /home/dev/.local/bin/tool: No such file or directory
$ sh -c nosuchtool [127]
sh: 1: nosuchtool: not found
$ env nosuchtool [127]
env: ‘nosuchtool’: No such file or directory
$ timeout 5 nosuchtool [127]
timeout: failed to run command ‘nosuchtool’: No such file or directory
$ xargs nosuchtool < a.txt [127]
xargs: nosuchtool: No such file or directory
$ make [2]
nosuchtool
make: nosuchtool: No such file or directory
make: *** [/dev/stdin:2: x] Error 127
$ /tmp/py -c 1 [127]
bash: line 1: /tmp/py: No such file or directory
$ /tmp/s [127]
bash: line 1: /tmp/s: cannot execute: required file not found
$ npm run build [127]
> app@1.0.0 build
> nosuchtool --x

sh: 1: nosuchtool: not found
""",
}

ORDINARY = r"""
$ sh -c '[[ -f README.md ]] && cat README.md' [127]
sh: 1: [[: not found
$ sh -c 'source .venv/bin/activate; python -V' [127]
sh: 1: source: not found
sh: 1: pushd: not found
$ git commit -m x [1]
On branch main
Your branch is up to date with 'origin/main'.

nothing to commit, working tree clean
$ git checkout nosuch [1]
error: pathspec 'nosuch' did not match any file(s) known to git
$ git tag a [128]
fatal: tag 'a' already exists
$ git cherry-pick nosuch [128]
fatal: bad revision 'nosuch'
$ git stash pop [1]
No stash entries found.
$ git commit --amend [1]
error: There was a problem with the editor 'false'.
Please supply the message using either -m or -F option.
$ git commit --allow-empty -m x [128]
Author identity unknown

*** Please tell me who you are.
$ git add . [128]
fatal: Unable to create '/project/.git/index.lock': File exists.

Another git process seems to be running in this repository, e.g.
an editor opened by 'git commit'.
$ ln /etc/passwd x [1]
ln: failed to create hard link 'x' => '/etc/passwd': Invalid cross-device link
$ cargo build --offline [101]
error: no matching package named `itoa` found
location searched: crates.io index
required by package `app v0.1.0 (/project/rust)`
As a reminder, you're using offline mode (--offline) which can sometimes cause surprising resolution failures, if this error is too confusing you may wish to retry without `--offline`.
$ mvn -o compile [1]
[ERROR] Plugin org.apache.maven.plugins:maven-resources-plugin:2.6 or one of its dependencies could not be resolved: Cannot access central (https://repo.example.org/maven2) in offline mode and the artifact org.apache.maven.plugins:maven-resources-plugin:jar:2.6 has not been downloaded from it before. -> [Help 1]
$ npm run x [254]
npm error enoent Could not read package.json: Error: ENOENT: no such file or directory, open '/project/package.json'
npm error enoent This is related to npm not being able to find a file.
npm error Log files were not written due to an error writing to the directory: /home/dev/.npm/_logs
npm error You can rerun the command with `--loglevel=verbose` to see the logs in your terminal
$ deno run fetch.mjs [1]
error: Uncaught (in promise) NotCapable: Requires net access to "example.com:443", run again with the --allow-net flag
await fetch("https://example.com");
$ docker login [1]
Error: Cannot perform an interactive login from a non TTY device
$ flask --app x run [2]
Usage: flask run [OPTIONS]
Try 'flask run --help' for help.

Error: Could not import 'x'.
$ gcc err.c [1]
err.c: In function ‘main’:
err.c:2:21: warning: initialization of ‘int’ from ‘char *’ makes integer from pointer without a cast [-Wint-conversion]
    2 | int main(){ int x = "a"; undeclared(); return y; }
      |                                               ^
err.c:2:47: note: each undeclared identifier is reported only once for each function it appears in
$ gcc link.c [1]
/usr/bin/ld: /tmp/cciC8lAf.o: in function `main':
link.c:(.text+0x5): undefined reference to `missing'
collect2: error: ld returned 1 exit status
$ gcc inc.c [1]
inc.c:1:10: fatal error: nosuch.h: No such file or directory
    1 | #include <nosuch.h>
      |          ^~~~~~~~~~
compilation terminated.
$ gcc nosuch.c [1]
cc1: fatal error: nosuch.c: No such file or directory
compilation terminated.
$ gcc -lnosuch ../c/a.c -o /tmp/x [1]
/usr/bin/ld: cannot find -lnosuch: No such file or directory
collect2: error: ld returned 1 exit status
$ g++ -std=c++99 err.c [1]
g++: error: unrecognized command-line option ‘-std=c++99’; did you mean ‘-std=c++98’?
$ rustc --out-dir /tmp err.rs [1]
error[E0425]: cannot find value `z` in this scope
 --> err.rs:1:106
error: aborting due to 2 previous errors
Some errors have detailed explanations: E0308, E0425.
For more information about an error, try `rustc --explain E0308`.
$ rustc --out-dir /tmp panic.rs; /tmp/panic [101]
thread 'main' (2) panicked at panic.rs:1:54:
index out of bounds: the len is 0 but the index is 3
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace
$ rustc --out-dir /tmp open.rs; /tmp/open [101]
thread 'main' (2) panicked at open.rs:1:41:
called `Result::unwrap()` on an `Err` value: Os { code: 2, kind: NotFound, message: "No such file or directory" }
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace
$ go vet err.go [2]
# command-line-arguments
vet: ./err.go:3:22: undeclared name: undefined
$ go run err.go [2]
# command-line-arguments
./err.go:2:8: imported and not used: "os"
./err.go:3:14: x declared but not used
./err.go:3:22: undefined: undefined
$ go test ./... [1]
--- FAIL: TestA (0.00s)
    a_test.go:3: got 1, want 2
FAIL
FAIL    x    0.001s
FAIL
$ cargo test [101]
   Compiling app v0.1.0 (/project/bad/rs)
    Finished `test` profile [unoptimized + debuginfo] target(s) in 0.22s
    adds
test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
error: test failed, to rerun pass `--bin app`
$ cargo build [101]
   Compiling app v0.1.0 (/project/bad/rs2)
error[E0308]: mismatched types
  |                   expected due to this
For more information about this error, try `rustc --explain E0308`.
error: could not compile `app` (bin "app") due to 1 previous error
$ cargo build --nosuch [1]
error: unexpected argument '--nosuch' found
  tip: a similar argument exists: '--bench'
Usage: cargo build --bench [<NAME>]
For more information, try '--help'.
$ cargo build [101]
error: could not find `Cargo.toml` in `/project/bad` or any parent directory
$ javac -d /tmp Err.java [1]
Err.java:1: error: incompatible types: String cannot be converted to int
public class Err { public static void main(String[] a){ int x = "s"; foo(); } }
  symbol:   method foo()
  location: class Err
2 errors
$ java Npe.java [1]
Exception in thread "main" java.lang.NullPointerException: Cannot invoke "String.length()" because "<local1>" is null
$ tsc --noEmit err.ts [1]
err.ts(1,7): error TS2322: Type 'string' is not assignable to type 'number'.
err.ts(2,33): error TS2322: Type 'string' is not assignable to type 'number'.
$ tsc --pretty --noEmit err.ts [1]
err.ts:1:7 - error TS2322: Type 'string' is not assignable to type 'number'.
1 const x: number = "Connection refused";
err.ts:2:33 - error TS2322: Type 'string' is not assignable to type 'number'.
2 function f(a: string): number { return a; }
Found 2 errors in the same file, starting at: err.ts:1
$ eslint err.js [2]
Oops! Something went wrong! :(
ESLint: 10.15.0
https://eslint.org/docs/latest/use/configure/migration-guide
If you still have problems after following the migration guide, please stop by
https://eslint.org/chat/help to chat with the team.
$ prettier --check syn.js [2]
Checking formatting...
[error] syn.js: SyntaxError: Unexpected token (1:7)
[error]     |       ^
[error]   2 |
Error occurred when checking code style in the above file.
$ prettier --check ../jsx/fetch.mjs bad.yaml [2]
Checking formatting...
[error] bad.yaml: SyntaxError: Flow sequence in block collection must be sufficiently indented and end with a ] (2:1)
[error] > 2 |
[error]     | ^
Error occurred when checking code style in the above file.
$ node err.js [1]
/project/bad/err.js:1
undefinedFn();
$ node syn.js [1]
/project/bad/syn.js:1
const = 3;
$ node mod.js [1]
node:internal/modules/cjs/loader:1210
  throw err;
  code: 'MODULE_NOT_FOUND',
  requireStack: [ '/project/bad/mod.js' ]
}
$ node nosuch.js [1]
node:internal/modules/cjs/loader:1210
  throw err;
  code: 'MODULE_NOT_FOUND',
  requireStack: []
}
$ node -e 'process.exit(3)' [3]
$ node -e 'JSON.parse("{a")' [1]
<anonymous_script>:1
{a
$ node -e 'require("fs").readFileSync("missing.json")' [1]
node:fs:573
  return binding.open(
  syscall: 'open',
  path: 'missing.json'
}
$ node -e 'throw new Error("not permitted")' [1]
[eval]:1
throw new Error("not permitted")
$ python err.py [1]
Traceback (most recent call last):
  File "/project/bad/err.py", line 1, in <module>
    import nosuchmodule
ModuleNotFoundError: No module named 'nosuchmodule'
$ python syn.py [1]
  File "/project/bad/syn.py", line 1
    def f(:
SyntaxError: invalid syntax
$ python key.py [1]
Traceback (most recent call last):
  File "/project/bad/key.py", line 2, in <module>
    os.environ["DATABASE_URL"]
  File "<frozen os>", line 679, in __getitem__
KeyError: 'DATABASE_URL'
$ python nofile.py [1]
Traceback (most recent call last):
  File "/project/bad/nofile.py", line 1, in <module>
    open("config.yaml")
FileNotFoundError: [Errno 2] No such file or directory: 'config.yaml'
$ python raise.py [1]
Traceback (most recent call last):
  File "/project/bad/raise.py", line 2, in <module>
    raise PermissionDenied("user 3 may not edit this post")
PermissionDenied: user 3 may not edit this post
$ python src_line.py [1]
Traceback (most recent call last):
  File "/project/bad/src_line.py", line 5, in <module>
  File "/project/bad/src_line.py", line 3, in connect
    if not ok: raise ValueError("bad port")  # not "Connection refused"
ValueError: bad port
$ python inuse.py [1]
Traceback (most recent call last):
  File "/project/bad/inuse.py", line 3, in <module>
    socket.socket().bind(("127.0.0.1", 8456))
OSError: [Errno 98] Address already in use
$ python timeout.py [1]
Traceback (most recent call last):
  File "/project/bad/timeout.py", line 3, in <module>
    b = socket.create_connection(a.getsockname()); b.settimeout(0.2); b.recv(1)
TimeoutError: timed out
$ python http404.py [1]
127.0.0.1 - - [17/Nov/2026 20:20:03] code 404, message File not found
127.0.0.1 - - [17/Nov/2026 20:20:03] "GET /nosuch HTTP/1.1" 404 -
  File "/usr/lib/python3.11/urllib/request.py", line 643, in http_error_default
    raise HTTPError(req.full_url, code, msg, hdrs, fp)
urllib.error.HTTPError: HTTP Error 404: File not found
$ python http403.py [1]
127.0.0.1 - - [17/Nov/2026 20:20:03] code 403, message Permission denied
127.0.0.1 - - [17/Nov/2026 20:20:03] "GET / HTTP/1.1" 403 -
  File "/usr/lib/python3.11/urllib/request.py", line 643, in http_error_default
    raise HTTPError(req.full_url, code, msg, hdrs, fp)
urllib.error.HTTPError: HTTP Error 403: Permission denied
$ python sqlerr.py [1]
Traceback (most recent call last):
  File "/project/bad/sqlerr.py", line 2, in <module>
    sqlite3.connect(":memory:").execute("select * from nosuch")
sqlite3.OperationalError: no such table: nosuch
$ python sqllock.py [1]
Traceback (most recent call last):
  File "/project/bad/sqllock.py", line 3, in <module>
    sqlite3.connect("/tmp/l.db",timeout=0.1).execute("create table x(a)")
sqlite3.OperationalError: database is locked
$ python nosuch.py [2]
python: can't open file '/project/bad/nosuch.py': [Errno 2] No such file or directory
$ python -m nosuch [1]
/venv/bin/python: No module named nosuch
$ python -c 'import sys; sys.exit("usage: tool FILE")' [1]
usage: tool FILE
$ python -c 'assert 1 == 2' [1]
Traceback (most recent call last):
  File "<string>", line 1, in <module>
AssertionError
$ python -c 'int("x")' [1]
Traceback (most recent call last):
  File "<string>", line 1, in <module>
ValueError: invalid literal for int() with base 10: 'x'
$ python unit.py [1]
FF
======================================================================
----------------------------------------------------------------------
Ran 2 tests in 0.001s
FAILED (failures=2)
$ pytest -q t/test_fail.py [1]
FFFF                                                                     [100%]
=================================== FAILURES ===================================
__________________________________ test_login __________________________________
    def test_login():
>       assert login("a")["status"] == 200
E       assert 403 == 200
t/test_fail.py:4: AssertionError
_________________________________ test_message _________________________________
    def test_message():
>       assert "Connection refused" in "could not connect"
E       AssertionError: assert 'Connection refused' in 'could not connect'
t/test_fail.py:6: AssertionError
_________________________________ test_raises __________________________________
    def test_raises():
>       with pytest.raises(ConnectionRefusedError):
E       Failed: DID NOT RAISE ConnectionRefusedError
t/test_fail.py:8: Failed
__________________________________ test_type ___________________________________
    def test_type():
>       1 + "a"
E       TypeError: unsupported operand type(s) for +: 'int' and 'str'
t/test_fail.py:11: TypeError
=========================== short test summary info ============================
FAILED t/test_fail.py::test_login - assert 403 == 200
FAILED t/test_fail.py::test_message - AssertionError: assert 'Connection refu...
FAILED t/test_fail.py::test_raises - Failed: DID NOT RAISE ConnectionRefusedE...
FAILED t/test_fail.py::test_type - TypeError: unsupported operand type(s) for...
4 failed in 0.03s
$ pytest -q --tb=short t/test_fail.py [1]
FFFF                                                                     [100%]
=================================== FAILURES ===================================
FAILED t/test_fail.py::test_raises - Failed: DID NOT RAISE ConnectionRefusedE...
FAILED t/test_fail.py::test_type - TypeError: unsupported operand type(s) for...
4 failed in 0.03s
$ pytest -q --tb=no t/test_fail.py [1]
FFFF                                                                     [100%]
=========================== short test summary info ============================
FAILED t/test_fail.py::test_login - assert 403 == 200
FAILED t/test_fail.py::test_message - AssertionError: assert 'Connection refu...
FAILED t/test_fail.py::test_raises - Failed: DID NOT RAISE ConnectionRefusedE...
FAILED t/test_fail.py::test_type - TypeError: unsupported operand type(s) for...
4 failed in 0.01s
$ pytest -q t/test_log.py [1]
F                                                                        [100%]
=================================== FAILURES ===================================
__________________________________ test_retry __________________________________
    def test_retry():
        logging.getLogger("client").warning("Connection refused, retrying")
>       assert 2 == 3
E       assert 2 == 3
t/test_log.py:4: AssertionError
------------------------------ Captured log call -------------------------------
WARNING  client:test_log.py:3 Connection refused, retrying
=========================== short test summary info ============================
FAILED t/test_log.py::test_retry - assert 2 == 3
1 failed in 0.03s
$ pytest -q t/test_fixture.py [1]
E                                                                        [100%]
==================================== ERRORS ====================================
=========================== short test summary info ============================
ERROR t/test_fixture.py::test_a
1 error in 0.01s
$ pytest -q t/test_import.py [2]
==================================== ERRORS ====================================
______________________ ERROR collecting t/test_import.py _______________________
ERROR t/test_import.py
!!!!!!!!!!!!!!!!!!!! Interrupted: 1 error during collection !!!!!!!!!!!!!!!!!!!!
1 error in 0.12s
$ pytest -q t/test_diff.py [1]
FF                                                                       [100%]
=================================== FAILURES ===================================
_______________________________ test_error_text ________________________________
    def test_error_text():
>       assert "Error: Permission denied\nexit 1" == "Error: Permission denied\nexit 2"
E       AssertionError: assert 'Error: Permi...enied\nexit 1' == 'Error: Permi...enied\nexit 2'
E
E           Error: Permission denied
E         - exit 2
E         ?      ^
E         + exit 1
E         ?      ^
t/test_diff.py:2: AssertionError
__________________________________ test_dict ___________________________________
    def test_dict():
>       assert {"error": "Network is unreachable", "code": 1} == {"error": "Network is unreachable", "code": 2}
E       AssertionError: assert {'error': 'Ne...e', 'code': 1} == {'error': 'Ne...e', 'code': 2}
E
E         Omitting 1 identical items, use -vv to show
E         Differing items:
E         {'code': 1} != {'code': 2}
E         Use -v to get more diff
t/test_diff.py:4: AssertionError
=========================== short test summary info ============================
FAILED t/test_diff.py::test_error_text - AssertionError: assert 'Error: Permi...
FAILED t/test_diff.py::test_dict - AssertionError: assert {'error': 'Ne...e',...
2 failed in 0.04s
$ pytest -q t/test_warn.py [1]
F                                                                        [100%]
=================================== FAILURES ===================================
=========================== short test summary info ============================
FAILED t/test_warn.py::test_w - AssertionError: nothing cached
1 failed, 1 warning in 0.03s
$ pytest -q t/test_fail.py [1]
FFFF                                                                     [100%]
=================================== FAILURES ===================================
__________________________________ test_login __________________________________
    def test_login():
>       assert login("a")["status"] == 200
E       assert 403 == 200
t/test_fail.py:4: AssertionError
_________________________________ test_message _________________________________
    def test_message():
>       assert "Connection refused" in "could not connect"
E       AssertionError: assert 'Connection refused' in 'could not connect'
t/test_fail.py:6: AssertionError
_________________________________ test_raises __________________________________
    def test_raises():
>       with pytest.raises(ConnectionRefusedError):
E       Failed: DID NOT RAISE ConnectionRefusedError
t/test_fail.py:8: Failed
__________________________________ test_type ___________________________________
    def test_type():
>       1 + "a"
E       TypeError: unsupported operand type(s) for +: 'int' and 'str'
t/test_fail.py:11: TypeError
=============================== warnings summary ===============================
../../venv/lib/python3.11/site-packages/_pytest/cacheprovider.py:487
  /venv/lib/python3.11/site-packages/_pytest/cacheprovider.py:487: PytestCacheWarning: cache could not write path /project/bad/.pytest_cache/v/cache/nodeids: [Errno 30] Read-only file system: '/project/bad/.pytest_cache/v/cache/nodeids'
    config.cache.set("cache/nodeids", sorted(str(n) for n in self.cached_nodeids))
-- Docs: https://docs.pytest.org/en/stable/how-to/capture-warnings.html
=========================== short test summary info ============================
FAILED t/test_fail.py::test_login - assert 403 == 200
FAILED t/test_fail.py::test_message - AssertionError: assert 'Connection refu...
FAILED t/test_fail.py::test_raises - Failed: DID NOT RAISE ConnectionRefusedE...
FAILED t/test_fail.py::test_type - TypeError: unsupported operand type(s) for...
4 failed, 1 warning in 0.03s
$ pytest -q t/test_fail.py [1]
FFFF                                                                     [100%]
=================================== FAILURES ===================================
__________________________________ test_login __________________________________
    def test_login():
>       assert login("a")["status"] == 200
E       assert 403 == 200
t/test_fail.py:4: AssertionError
_________________________________ test_message _________________________________
    def test_message():
>       assert "Connection refused" in "could not connect"
E       AssertionError: assert 'Connection refused' in 'could not connect'
t/test_fail.py:6: AssertionError
_________________________________ test_raises __________________________________
    def test_raises():
>       with pytest.raises(ConnectionRefusedError):
E       Failed: DID NOT RAISE ConnectionRefusedError
t/test_fail.py:8: Failed
__________________________________ test_type ___________________________________
    def test_type():
>       1 + "a"
E       TypeError: unsupported operand type(s) for +: 'int' and 'str'
t/test_fail.py:11: TypeError
=============================== warnings summary ===============================
../../venv/lib/python3.11/site-packages/_pytest/cacheprovider.py:487
  /venv/lib/python3.11/site-packages/_pytest/cacheprovider.py:487: PytestCacheWarning: cache could not write path /project/bad/.pytest_cache/v/cache/nodeids: [Errno 13] Permission denied: '/project/bad/.pytest_cache/v/cache/nodeids'
    config.cache.set("cache/nodeids", sorted(str(n) for n in self.cached_nodeids))
-- Docs: https://docs.pytest.org/en/stable/how-to/capture-warnings.html
=========================== short test summary info ============================
FAILED t/test_fail.py::test_login - assert 403 == 200
FAILED t/test_fail.py::test_message - AssertionError: assert 'Connection refu...
FAILED t/test_fail.py::test_raises - Failed: DID NOT RAISE ConnectionRefusedE...
FAILED t/test_fail.py::test_type - TypeError: unsupported operand type(s) for...
4 failed, 1 warning in 0.02s
$ pytest -q nosuch.py [4]
ERROR: file or directory not found: nosuch.py
no tests ran in 0.00s
$ pytest --nosuch [4]
ERROR: usage: pytest [options] [file_or_dir] [file_or_dir] [...]
pytest: error: unrecognized arguments: --nosuch
  inifile: None
  rootdir: /project/bad
$ pytest t/test_fixture.py [1]
============================= test session starts ==============================
platform linux -- Python 3.11.7, pytest-9.2.0, pluggy-1.7.0
=========================== short test summary info ============================
ERROR t/test_fixture.py::test_a
========================= 1 warning, 1 error in 0.01s ==========================
$ jest --rootDir . fail.test.js [1]
FAIL ./fail.test.js
  ✕ shows the error (6 ms)
  ✕ throws
  ● shows the error
    expect(received).toBe(expected) // Object.is equality
    Expected: "EACCES: permission denied"
    Received: "connect ECONNREFUSED"
    > 1 | test("shows the error", () => { expect("connect ECONNREFUSED").toBe("EACCES: permission denied"); });
        |                                                                ^
      2 | test("throws", () => { expect(() => {}).toThrow("Read-only file system"); });
      3 |
      at Object.toBe (fail.test.js:1:64)
  ● throws
    expect(received).toThrow(expected)
    Expected substring: "Read-only file system"
    Received function did not throw
      1 | test("shows the error", () => { expect("connect ECONNREFUSED").toBe("EACCES: permission denied"); });
    > 2 | test("throws", () => { expect(() => {}).toThrow("Read-only file system"); });
        |                                         ^
      3 |
      at Object.toThrow (fail.test.js:2:41)
Test Suites: 1 failed, 1 total
Tests:       2 failed, 2 total
Snapshots:   0 total
Time:        0.458 s
Ran all test suites matching fail.test.js.
$ jest --rootDir . mathv.test.js [1]
FAIL ./mathv.test.js
  ✕ sum (7 ms)
Snapshots:   0 total
Time:        0.413 s
Ran all test suites matching mathv.test.js.
$ vitest run --globals fail.test.js [1]
 RUN  v4.1.12 /project/bad
 ❯ fail.test.js (2 tests | 2 failed) 11ms
   × shows the error 7ms
   × throws 2ms
⎯⎯⎯⎯⎯⎯⎯ Failed Tests 2 ⎯⎯⎯⎯⎯⎯⎯
 FAIL  fail.test.js > shows the error
AssertionError: expected 'connect ECONNREFUSED' to be 'EACCES: permission denied' // Object.is equality
Expected: "EACCES: permission denied"
Received: "connect ECONNREFUSED"
 ❯ fail.test.js:1:64
      1| test("shows the error", () => { expect("connect ECONNREFUSED").toBe("E…
       |                                                                ^
      2| test("throws", () => { expect(() => {}).toThrow("Read-only file system…
      3|
⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯[1/2]⎯
 FAIL  fail.test.js > throws
AssertionError: expected [Function] to throw an error
- Expected:
null
+ Received:
undefined
 ❯ fail.test.js:2:41
      1| test("shows the error", () => { expect("connect ECONNREFUSED").toBe("E…
      2| test("throws", () => { expect(() => {}).toThrow("Read-only file system…
       |                                         ^
      3|
⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯[2/2]⎯
 Test Files  1 failed (1)
      Tests  2 failed (2)
   Start at  20:20:14
   Duration  229ms (transform 20ms, setup 0ms, import 27ms, tests 11ms, environment 0ms)
$ mypy --cache-dir=/tmp/m -c 'x: int = "a"' [1]
<string>:1: error: Incompatible types in assignment (expression has type "str", variable has type "int")  [assignment]
Found 1 error in 1 file (checked 1 source file)
$ black --check ../tests/test_db.py [1]
would reformat ../tests/test_db.py
Oh no! 💥 💔 💥
1 file would be reformatted.
$ black --check syn.py [123]
error: cannot parse: syn.py:1:6
    def f(:
ParseError: bad input
Oh no! 💥 💔 💥
1 file would fail to reformat.
$ npm test [1]
> app@1.0.0 test
> exit 1
$ npm run lint [2]
> app@1.0.0 lint
> node -e "console.error(1);process.exit(2)"
1
$ npm run nosuch [1]
npm error Missing script: "nosuch"
npm error To see a list of scripts, run:
npm error   npm run
$ npm ci [1]
npm error code EUSAGE
npm error aliases: clean-install, ic, install-clean, isntall-clean
npm error Run "npm help ci" for more info
$ npm nosuch [1]
Unknown command: "nosuch"
To see a list of supported npm commands, run:
  npm help
$ pnpm run lint [2]
> app@1.0.0 lint /project/bad/npm
> node -e "console.error(1);process.exit(2)"
1
 ELIFECYCLE  Command failed with exit code 2.
 WARN   Local package.json exists, but node_modules missing, did you mean to install?
$ npm install ./nosuch.tgz [254]
npm warn tarball tarball data for file:nosuch.tgz (null) seems to be corrupted. Trying again.
npm warn tarball tarball data for file:nosuch.tgz (null) seems to be corrupted. Trying again.
npm error enoent ENOENT: no such file or directory, open '/project/bad/nosuch.tgz'
npm error enoent This is related to npm not being able to find a file.
npm error enoent
$ make [2]
Makefile:5: *** missing separator.  Stop.
$ make -f M2 bad [2]
false
make: *** [M2:2: bad] Error 1
$ make -f M2 test [2]
python -c "assert 0"
Traceback (most recent call last):
  File "<string>", line 1, in <module>
AssertionError
make: *** [M2:4: test] Error 1
$ make -f M2 cc [2]
gcc err.c
err.c: In function ‘main’:
      |                                               ^
err.c:2:47: note: each undeclared identifier is reported only once for each function it appears in
make: *** [M2:6: cc] Error 1
$ make -f M3 [2]
make: *** No rule to make target 'nosuch.c', needed by 'all'.  Stop.
$ make -f M4 [2]
./noexec.sh
make: ./noexec.sh: Permission denied
make: *** [M4:2: x] Error 127
$ make nosuch -f M2 [2]
make: *** No rule to make target 'nosuch'.  Stop.
$ cmake -S . -B /tmp/b [1]
CMake Error: The source directory "/project/bad" does not appear to contain CMakeLists.txt.
Specify --help for usage, or press the help button on the CMake GUI.
$ git log nosuch [128]
fatal: ambiguous argument 'nosuch': unknown revision or path not in the working tree.
Use '--' to separate paths from revisions, like this:
'git <command> [<revision>...] -- [<file>...]'
$ git show nosuch:file [128]
fatal: invalid object name 'nosuch'.
$ git diff --exit-code [1]
diff --git a/a.txt b/a.txt
index ce01362..ef49dd8 100644
@@ -1 +1 @@
-hello
+more
$ git diff --quiet [1]
$ git merge nosuch [1]
merge: nosuch - not something we can merge
$ git apply bad/bad.patch [1]
error: b: No such file or directory
$ git rebase nosuch [128]
fatal: invalid upstream 'nosuch'
$ cd /tmp && git status [128]
fatal: not a git repository (or any parent up to mount point /)
Stopping at filesystem boundary (GIT_DISCOVERY_ACROSS_FILESYSTEM not set).
$ git nosuch [1]
git: 'nosuch' is not a git command. See 'git --help'.
$ git push nosuch HEAD [128]
fatal: 'nosuch' does not appear to be a git repository
fatal: Could not read from remote repository.
Please make sure you have the correct access rights
and the repository exists.
$ git clone /tmp/nosuch /tmp/y [128]
fatal: repository '/tmp/nosuch' does not exist
$ cd /tmp && git init -q . && git -c user.name=a -c user.email=b@c commit -m x [1]
On branch master
Initial commit
  (use "git add <file>..." to include in what will be committed)
    messages/
nothing added to commit but untracked files present (use "git add" to track)
$ cd /tmp && git init -q . && git rev-parse HEAD [128]
fatal: ambiguous argument 'HEAD': unknown revision or path not in the working tree.
Use '--' to separate paths from revisions, like this:
'git <command> [<revision>...] -- [<file>...]'
HEAD
$ grep nosuch a.txt [1]
$ grep '[' a.txt [2]
grep: Invalid regular expression
$ grep x missing.txt [2]
grep: missing.txt: No such file or directory
$ grep -n 'ECONNREFUSED' bad/fail.test.js [1]
1:test("shows the error", () => { expect("connect ECONNREFUSED").toBe("EACCES: permission denied"); });
$ diff a.txt bad/s.sh [1]
1c1,3
< more
> #!/bin/sh
> set -e
> grep nosuch /etc/hostname
$ diff -u a.txt bad/s.sh [1]
--- a.txt    2026-11-17 20:08:13.767029419 +0000
+++ bad/s.sh    2026-11-17 20:19:52.405455011 +0000
+#!/bin/sh
+set -e
+grep nosuch /etc/hostname
$ cmp a.txt bad/s.sh [1]
a.txt bad/s.sh differ: byte 1, line 1
$ test -f missing [1]
$ [ 1 -eq 2 ] [1]
$ [ 1 -eq a ] [2]
bash: line 1: [: a: integer expression expected
$ false [1]
$ ls missing [2]
ls: cannot access 'missing': No such file or directory
$ cat missing.txt [1]
cat: missing.txt: No such file or directory
$ cp missing.txt x [1]
cp: cannot stat 'missing.txt': No such file or directory
$ mv missing.txt x [1]
mv: cannot stat 'missing.txt': No such file or directory
$ rm missing.txt [1]
rm: cannot remove 'missing.txt': No such file or directory
$ rmdir bad [1]
rmdir: failed to remove 'bad': Directory not empty
$ mkdir bad [1]
mkdir: cannot create directory ‘bad’: File exists
$ mkdir a/b/c [1]
mkdir: cannot create directory ‘a/b/c’: No such file or directory
$ cd nosuch [1]
bash: line 1: cd: nosuch: No such file or directory
$ cat bad [1]
cat: bad: Is a directory
$ tar xf a.txt [2]
tar: This does not look like a tar archive
tar: Exiting with failure status due to previous errors
$ tar xf missing.tar [2]
tar: missing.tar: Cannot open: No such file or directory
tar: Error is not recoverable: exiting now
$ unzip a.txt [9]
Archive:  a.txt
  End-of-central-directory signature not found.  Either this file is not
  the last disk(s) of this archive.
unzip:  cannot find zipfile directory in one of a.txt or
        a.txt.zip, and cannot find a.txt.ZIP, period.
$ gzip -d a.txt [2]
gzip: a.txt: unknown suffix -- ignored
$ sed 's/a' a.txt [1]
sed: -e expression #1, char 3: unterminated `s' command
$ sed -i s/a/b/ missing.txt [2]
sed: can't read missing.txt: No such file or directory
$ awk '{' a.txt [2]
awk: line 2: missing } near end of file
$ jq . bad/bad.json [4]
parse error: Unmatched '}' at line 1, column 7
$ jq .a missing.json [2]
jq: error: Could not open file missing.json: No such file or directory
$ bash bad/err.sh [2]
bad/err.sh: line 2: syntax error: unexpected end of file
$ sh bad/s.sh [1]
$ bash -c 'set -u; echo $nosuch' [127]
bash: line 1: nosuch: unbound variable
$ bash -c 'exit 42' [42]
$ bad/noexec.sh [126]
bash: line 1: bad/noexec.sh: Permission denied
$ ./bad/noexec.sh [126]
bash: line 1: ./bad/noexec.sh: Permission denied
$ ./bad [126]
bash: line 1: ./bad: Is a directory
$ sort --nosuch [2]
sort: unrecognized option '--nosuch'
Try 'sort --help' for more information.
$ ls --nosuch [2]
ls: unrecognized option '--nosuch'
Try 'ls --help' for more information.
$ curl --nosuch [2]
curl: option --nosuch: is unknown
curl: try 'curl --help' or 'curl --manual' for more information
$ curl -sS file:///nosuch [37]
curl: (37) Couldn't open file /nosuch
$ curl [2]
curl: try 'curl --help' or 'curl --manual' for more information
$ wget [1]
wget: missing URL
Usage: wget [OPTION]... [URL]...
Try `wget --help' for more options.
$ timeout 0.2 sleep 5 [124]
$ kill 99999 [1]
bash: line 1: kill: (99999) - No such process
$ date -d nosuch [1]
date: invalid date ‘nosuch’
$ expr 1 / 0 [2]
expr: division by zero
$ bash -c 'echo $((1/0))' [1]
bash: line 1: 1/0: division by 0 (error token is "0")
$ find nosuch [1]
find: ‘nosuch’: No such file or directory
$ xargs -I{} false < a.txt [123]
$ sqlite3 app.db 'select * from nosuch' [1]
Error: in prepare, no such table: nosuch
$ sqlite3 app.db 'selec' [1]
Error: in prepare, near "selec": syntax error
  selec
  ^--- error here
$ patch -p0 --dry-run < bad.patch [1]
can't find file to patch at input line 3
Perhaps you used the wrong -p or --strip option?
Skip this patch? [y]
Skipping patch.
1 out of 1 hunk ignored
$ ruby err.rb [1]
err.rb:1:in `<main>': wrong (ArgumentError)
$ ruby -e 'require "nosuch"' [1]
<internal:/usr/lib/ruby/vendor_ruby/rubygems/core_ext/kernel_require.rb>:85:in `require': cannot load such file -- nosuch (LoadError)
$ perl err.pl [255]
Global symbol "$x" requires explicit package name (did you forget to declare "my $x"?) at err.pl line 1.
Execution of err.pl aborted due to compilation errors.
$ php err.php [255]
Fatal error: Uncaught Exception: x in /project/bad/err.php:1
Stack trace:
#0 {main}
  thrown in /project/bad/err.php on line 1
$ php nosuch.php [1]
Could not open input file: nosuch.php
$ docker nosuch [1]
docker: unknown command: docker nosuch
Run 'docker --help' for more information
$ terraform validate [1]
╷
│ Error: Unclosed configuration block
│
│ All resource blocks must have 2 labels (type, name).
╵
$ terraform fmt -check [2]
╷
│ Error: Unclosed configuration block
│ There is no closing brace for this block before the end of the file. This
│ may be caused by incorrect brace nesting elsewhere in this file.
╵
$ mvn -q -B -o compile [1]
[ERROR] [ERROR] Some problems were encountered while processing the POMs:
[FATAL] Non-readable POM /project/bad/mv/pom.xml: no more data available - expected end tag </project> to close start tag <project> from line 1, parser stopped on START_TAG seen <project>\n... @2:1 @
[ERROR]
[ERROR] For more information about the errors and possible solutions, please read the following articles:
[ERROR] [Help 1] http://cwiki.apache.org/confluence/display/MAVEN/ProjectBuildingException
$ kubectl nosuch [1]
Error: unknown command "nosuch" for "kubectl"
$ kubectl apply -f bad.yaml --dry-run=client [1]
error: error parsing bad.yaml: error converting YAML to JSON: yaml: line 1: did not find expected ',' or ']'
$ ansible-playbook nosuch.yml [1]
ERROR! the playbook: nosuch.yml could not be found
$ pip install -r missing.txt [1]
ERROR: Could not open requirements file: [Errno 2] No such file or directory: 'missing.txt'
$ pip nosuch [1]
ERROR: unknown command "nosuch"
$ pip install ./nosuch [1]
ERROR: Invalid requirement: './nosuch'
Hint: It looks like a path. File './nosuch' does not exist.
$ uv nosuch [2]
error: unrecognized subcommand 'nosuch'
Usage: uv [OPTIONS] <COMMAND>
For more information, try '--help'.
$ poetry check [1]
Poetry could not find a pyproject.toml file in /project/bad or its parents
$ django-admin nosuch [1]
No Django settings specified.
Unknown command: 'nosuch'
Type 'django-admin help' for usage.
$ rsync -a missing /tmp/x [23]
rsync: [sender] link_stat "/project/bad/missing" failed: No such file or directory (2)
rsync error: some files/attrs were not transferred (see previous errors) (code 23) at main.c(1347) [sender=3.2.7]
$ ssh -o nosuch host [255]
command-line line 0: no argument after keyword "nosuch"
$ openssl x509 -in missing.pem [1]
Could not open file or uri for loading certificate from missing.pem
808B8465957F0000:error:16000069:STORE routines:ossl_store_get0_loader_int:unregistered scheme:../crypto/store/store_register.c:237:scheme=file
808B8465957F0000:error:80000002:system library:file_open:No such file or directory:../providers/implementations/storemgmt/file_store.c:266:calling stat(missing.pem)
Unable to load certificate
$ dd if=missing of=/tmp/x [1]
dd: failed to open 'missing': No such file or directory
$ bundle exec rake [10]
Could not locate Gemfile or .bundle/ directory
$ gem nosuch [1]
ERROR:  While executing gem ... (Gem::UnknownCommandError)
    Unknown command nosuch
$ go build nosuch [1]
package nosuch is not in GOROOT (/usr/lib/go-1.19/src/nosuch)
$ gdb -batch -ex 'run' nosuch [1]
nosuch: No such file or directory.
No executable file specified.
Use the "file" or "exec-file" command.
$ java -jar nosuch.jar [1]
Error: Unable to access jarfile nosuch.jar
$ java Nosuch [1]
Error: Could not find or load main class Nosuch
Caused by: java.lang.ClassNotFoundException: Nosuch
$ bash -c 'ulimit -v 100000; python -c "x = b\"a\" * 10**9"' [1]
Traceback (most recent call last):
  File "<string>", line 1, in <module>
MemoryError
$ dpkg -s nosuch [1]
dpkg-query: package 'nosuch' is not installed and no information is available
Use dpkg --info (= dpkg-deb --info) to examine archive files.
$ apt-get nosuch [100]
E: Invalid operation nosuch
$ python -c 'import os; os.mkdir("t")' [1]
Traceback (most recent call last):
  File "<string>", line 1, in <module>
FileExistsError: [Errno 17] File exists: 't'
$ python -c 'import json; json.load(open("bad.json"))' [1]
Traceback (most recent call last):
  File "<string>", line 1, in <module>
  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode
    raise JSONDecodeError("Expecting value", s, err.value) from None
json.decoder.JSONDecodeError: Expecting value: line 1 column 7 (char 6)
$ python -c 'import subprocess; subprocess.run(["false"], check=True)' [1]
Traceback (most recent call last):
  File "<string>", line 1, in <module>
  File "/usr/lib/python3.11/subprocess.py", line 571, in run
    raise CalledProcessError(retcode, process.args,
subprocess.CalledProcessError: Command '['false']' returned non-zero exit status 1.
$ python -c 'import requests; requests.get("example")' [1]
Traceback (most recent call last):
  File "<string>", line 1, in <module>
  File "/venv/lib/python3.11/site-packages/requests/models.py", line 514, in prepare_url
    raise MissingSchema(
requests.exceptions.MissingSchema: Invalid URL 'example': No scheme supplied. Perhaps you meant https://example?
$ python -c 'import argparse; argparse.ArgumentParser().parse_args(["--x"])' [2]
usage: -c [-h]
-c: error: unrecognized arguments: --x
$ ls > /dev/full [2]
ls: write error: No space left on device
$ tox -e nosuch --workdir /tmp/t [254]
ROOT: No loadable tox.ini or setup.cfg or pyproject.toml or tox.toml found, assuming empty tox.ini at /project/bad
ROOT: HandledError| provided environments not found in configuration file:
nosuch
$ node --test node_test.mjs [1]
TAP version 13
# Subtest: denied
# skipped 0
# todo 0
# duration_ms 165.631767
$ python reset.py [1]
Traceback (most recent call last):
  File "/project/bad/reset.py", line 5, in <module>
    b.recv(1)
ConnectionResetError: [Errno 104] Connection reset by peer
$ python denied_app.py [1]
ERROR 1045 (28000): Access denied for user 'app'@'localhost' (using password: YES)
$ python forbidden.py [1]
Traceback (most recent call last):
  File "/project/bad/forbidden.py", line 7, in <module>
  File "/venv/lib/python3.11/site-packages/requests/models.py", line 1167, in raise_for_status
    raise HTTPError(http_error_msg, response=self)
requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: http://127.0.0.1:33199/
$ python drf.py [1]
Traceback (most recent call last):
  File "/project/bad/drf.py", line 4, in <module>
  File "/project/bad/drf.py", line 3, in view
    def view(): raise PermissionDenied("You do not have permission to perform this action.")
PermissionDenied: You do not have permission to perform this action.
$ pytest -q t/test_server.py [1]
FFFFFF                                                                   [100%]
=================================== FAILURES ===================================
___________________________ test_refused_is_reported ___________________________
    def test_refused_is_reported():
        try: urllib.request.urlopen("http://127.0.0.1:9/")
        except OSError as error: message = str(error)
>       assert message == "cannot reach 127.0.0.1:9"
E       AssertionError: assert '<urlopen err...tion refused>' == 'cannot reach 127.0.0.1:9'
E
E         - cannot reach 127.0.0.1:9
E         + <urlopen error [Errno 111] Connection refused>
t/test_server.py:5: AssertionError
__________________________________ test_param __________________________________
    def test_param():
>       assert [1, 2, 3] == [1, 2, 4]
E       assert [1, 2, 3] == [1, 2, 4]
E
E         At index 2 diff: 3 != 4
E         Use -v to get more diff
t/test_server.py:7: AssertionError
_______________________ test_messages[Permission denied] _______________________
text = 'Permission denied'
    @pytest.mark.parametrize("text", ["Permission denied", "Read-only file system"])
>   def test_messages(text): assert text == ""
                             ^^^^^^^^^^^^^^^^^
E   AssertionError: assert 'Permission denied' == ''
E
E     + Permission denied
t/test_server.py:9: AssertionError
_____________________ test_messages[Read-only file system] _____________________
text = 'Read-only file system'
    @pytest.mark.parametrize("text", ["Permission denied", "Read-only file system"])
>   def test_messages(text): assert text == ""
                             ^^^^^^^^^^^^^^^^^
E   AssertionError: assert 'Read-only file system' == ''
E
E     + Read-only file system
t/test_server.py:9: AssertionError
__________________________________ test_mock ___________________________________
tmp_path = PosixPath('/tmp/pytest-of-dev/pytest-0/test_mock0')
    def test_mock(tmp_path):
>       with pytest.raises(OSError, match="Read-only file system"):
E       AssertionError: Regex pattern did not match.
E         Expected regex: 'Read-only file system'
E         Actual message: '[Errno 13] no'
t/test_server.py:11: AssertionError
__________________________________ test_lock ___________________________________
    def test_lock():
>       raise RuntimeError("operation not permitted in state CLOSED")
E       RuntimeError: operation not permitted in state CLOSED
t/test_server.py:14: RuntimeError
=========================== short test summary info ============================
FAILED t/test_server.py::test_refused_is_reported - AssertionError: assert '<...
FAILED t/test_server.py::test_param - assert [1, 2, 3] == [1, 2, 4]
FAILED t/test_server.py::test_messages[Permission denied] - AssertionError: a...
FAILED t/test_server.py::test_messages[Read-only file system] - AssertionErro...
FAILED t/test_server.py::test_mock - AssertionError: Regex pattern did not ma...
FAILED t/test_server.py::test_lock - RuntimeError: operation not permitted in...
6 failed in 0.09s
$ pytest -q --tb=line t/test_fail.py [1]
FFFF                                                                     [100%]
=================================== FAILURES ===================================
FAILED t/test_fail.py::test_raises - Failed: DID NOT RAISE ConnectionRefusedE...
FAILED t/test_fail.py::test_type - TypeError: unsupported operand type(s) for...
4 failed, 1 warning in 0.01s
$ eslint lint.js [1]
(node:2) [MODULE_TYPELESS_PACKAGE_JSON] Warning: Module type of file:///project/bad/eslint.config.js?mtime=1794947575998 is not specified and it doesn't parse as CommonJS.
Reparsing as ES module because module syntax was detected. This incurs a performance overhead.
  2:10  error  'f' is defined but never used           no-unused-vars
  2:23  error  'b' is not defined                      no-undef
✖ 3 problems (3 errors, 0 warnings)
$ g++ t.cpp [1]
t.cpp: In function ‘int main()’:
t.cpp:2:35: error: ‘class std::vector<int>’ has no member named ‘push’
    2 | int main(){ std::vector<int> v; v.push(1); }
      |                                   ^~~~
$ cmake -S cmk -B /tmp/cb [1]
-- The C compiler identification is GNU 12.2.0
-- Detecting C compiler ABI info
  installed.
-- Configuring incomplete, errors occurred!
See also "/tmp/cb/CMakeFiles/CMakeOutput.log".
$ ansible-playbook --syntax-check pb.yml [4]
[WARNING]: No inventory was parsed, only implicit localhost is available
[WARNING]: provided hosts list is empty, only localhost is available. Note that
- hosts: all
  tasks
^ here
$ rustc --out-dir /tmp trait.rs [1]
error[E0308]: mismatched types
 --> trait.rs:1:52
  |                                                                                   +++++++
error: aborting due to 1 previous error
For more information about this error, try `rustc --explain E0308`.
$ go test -run TestDial . [1]
--- FAIL: TestDial (0.00s)
    b_test.go:3: wrong error: "x"
FAIL
FAIL    x    0.002s
FAIL
$ java Perm.java [1]
Exception in thread "main" java.lang.SecurityException: access denied to role guest
$ python -c 'raise ConnectionError("pool is closed")' [1]
Traceback (most recent call last):
  File "<string>", line 1, in <module>
ConnectionError: pool is closed
$ python -c 'raise OSError("sensor not ready")' [1]
Traceback (most recent call last):
  File "<string>", line 1, in <module>
OSError: sensor not ready
$ python -c 'import os; os.listdir("nosuch")' [1]
Traceback (most recent call last):
  File "<string>", line 1, in <module>
FileNotFoundError: [Errno 2] No such file or directory: 'nosuch'
$ python -c 'import os; os.rmdir("t")' [1]
Traceback (most recent call last):
  File "<string>", line 1, in <module>
OSError: [Errno 39] Directory not empty: 't'
$ python -c 'open("t")' [1]
Traceback (most recent call last):
  File "<string>", line 1, in <module>
IsADirectoryError: [Errno 21] Is a directory: 't'
$ python -c 'import socket; socket.create_server(("127.0.0.1", 70000))' [1]
Traceback (most recent call last):
  File "<string>", line 1, in <module>
  File "/usr/lib/python3.11/socket.py", line 930, in create_server
    sock.bind(address)
OverflowError: bind(): port must be 0-65535.
$ python -c 'import subprocess; subprocess.run(["nosuchtool"])' [1]
Traceback (most recent call last):
  File "<string>", line 1, in <module>
  File "/usr/lib/python3.11/subprocess.py", line 1950, in _execute_child
    raise child_exception_type(errno_num, err_msg, err_filename)
FileNotFoundError: [Errno 2] No such file or directory: 'nosuchtool'
$ python -c 'import ssl; ssl.create_default_context(cafile="nosuch.pem")' [1]
Traceback (most recent call last):
  File "<string>", line 1, in <module>
  File "/usr/lib/python3.11/ssl.py", line 770, in create_default_context
    context.load_verify_locations(cafile, capath, cadata)
FileNotFoundError: [Errno 2] No such file or directory
$ python -c 'import tomllib; tomllib.loads("a =")' [1]
Traceback (most recent call last):
  File "<string>", line 1, in <module>
  File "/usr/lib/python3.11/tomllib/_parser.py", line 649, in parse_value
    raise suffixed_err(src, pos, "Invalid value")
tomllib.TOMLDecodeError: Invalid value (at end of document)
$ python -c 'import asyncio; asyncio.run(asyncio.wait_for(asyncio.sleep(9), 0.1))' [1]
Traceback (most recent call last):
  File "/usr/lib/python3.11/asyncio/tasks.py", line 500, in wait_for
  File "/usr/lib/python3.11/asyncio/tasks.py", line 502, in wait_for
    raise exceptions.TimeoutError() from exc
TimeoutError
$ python -W error -c 'import warnings; warnings.warn("Permission denied for the cache, using memory")' [1]
Traceback (most recent call last):
  File "<string>", line 1, in <module>
UserWarning: Permission denied for the cache, using memory
$ python -c 'import logging; logging.warning("connection refused, retrying"); 1/0' [1]
WARNING:root:connection refused, retrying
Traceback (most recent call last):
  File "<string>", line 1, in <module>
ZeroDivisionError: division by zero
$ python -c 'import logging; logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s"); logging.warning("db: Connection refused"); raise KeyError(1)' [1]
2026-11-17 20:33:08,875 WARNING db: Connection refused
Traceback (most recent call last):
  File "<string>", line 1, in <module>
KeyError: 1
$ node -e 'Promise.reject(new Error("forbidden"))' [1]
[eval]:1
Promise.reject(new Error("forbidden"))
$ node -e 'console.warn("WARN cache: EROFS: read-only file system, open /x"); process.exit(1)' [1]
WARN cache: EROFS: read-only file system, open /x
$ node -e 'new URL("x")' [1]
node:internal/url:806
    const href = bindingUrl.parse(input, base, raiseException);
  code: 'ERR_INVALID_URL',
  input: 'x'
}
$ node -e 'require("fs").readdirSync("nosuch")' [1]
node:fs:1521
  const result = binding.readdir(
  syscall: 'scandir',
  path: 'nosuch'
}
$ node -e 'require("child_process").execSync("exit 3")' [1]
node:child_process:966
    throw err;
  stdout: Buffer(0) [Uint8Array] [],
  stderr: Buffer(0) [Uint8Array] []
}
$ node -e 'require("child_process").spawn("nosuchtool")' [1]
node:events:502
      throw er; // Unhandled 'error' event
  path: 'nosuchtool',
  spawnargs: []
}
$ node --nosuch [9]
node: bad option: --nosuch
$ tsc --nosuch [1]
error TS5023: Unknown compiler option '--nosuch'.
$ tsc -p nosuch.json [1]
error TS5058: The specified path does not exist: '/project/bad/nosuch.json'.
$ jest --nosuch [1]
● Unrecognized CLI Parameter:
  Unrecognized option "nosuch".
  CLI Options Documentation:
  https://jestjs.io/docs/cli
$ jest --rootDir . nosuch.test.js [1]
No tests found, exiting with code 1
Run with `--passWithNoTests` to exit with code 0
  testPathIgnorePatterns: /node_modules/ - 12 matches
  testRegex:  - 0 matches
Pattern: nosuch.test.js - 0 matches
$ vitest run nosuch [1]
 RUN  v4.1.12 /project/bad
No test files found, exiting with code 1
filter: nosuch
include: **/*.{test,spec}.?(c|m)[jt]s?(x)
exclude:  **/node_modules/**, **/.git/**
$ npm version nosuch [1]
npm error Invalid version: nosuch
$ yarn run nosuch [1]
Usage Error: The nearest package directory (/project/bad/npm) doesn't seem to be part of the project declared in /project/bad.
- If the project directory is right, it might be that you forgot to list npm as a workspace.
- If it isn't, it's likely because you have a yarn.lock or package.json file there, confusing the project root detection.
 $ yarn run [--inspect] [--inspect-brk] <scriptName> ...
$ pip install --nosuch [2]
Usage:
  pip install [options] <requirement specifier> [package-index-options] ...
  pip install [options] [-e] <local project path> ...
  pip install [options] <archive url/path> ...
no such option: --nosuch
$ pip show nosuch [1]
WARNING: Package(s) not found: nosuch
$ uv run --nosuch [2]
error: unexpected argument '--nosuch' found
  tip: a similar argument exists: '--no-sources'
Usage: uv run --no-sources
For more information, try '--help'.
$ uv pip compile missing.in [2]
error: File not found: missing.in
$ mypy --cache-dir=/tmp/m nosuch.py [2]
nosuch.py: error: Cannot read file: No such file or directory
Found 1 error in 1 file (errors prevented further checking)
$ mypy --cache-dir=/tmp/m syn.py [2]
syn.py:1: error: Expected a parameter or the end of the parameter list  [syntax]
syn.py:2: error: Unexpected EOF while parsing  [syntax]
Found 2 errors in 1 file (errors prevented further checking)
$ black --nosuch [2]
Usage: black [OPTIONS] SRC ...
Try 'black --help' for help.
Error: No such option '--nosuch'. Did you mean '--no-cache'?
$ django-admin startproject 1bad [1]
CommandError: '1bad' is not a valid project name. Please make sure the name is a valid identifier.
$ tox --nosuch [254]
ROOT: No loadable tox.ini or setup.cfg or pyproject.toml or tox.toml found, assuming empty tox.ini at /project/bad
ROOT: HandledError| unrecognized arguments: --nosuch
hint: if you tried to pass arguments to a command use -- to separate them from tox ones
$ pre-commit nosuch [2]
usage: pre-commit [-h] [-V]
                  {autoupdate,clean,gc,hazmat,init-templatedir,install,install-hooks,migrate-config,run,sample-config,try-repo,uninstall,validate-config,validate-manifest,help,hook-impl}
                  ...
pre-commit: error: argument command: invalid choice: 'nosuch' (choose from 'autoupdate', 'clean', 'gc', 'hazmat', 'init-templatedir', 'install', 'install-hooks', 'migrate-config', 'run', 'sample-config', 'try-repo', 'uninstall', 'validate-config', 'validate-manifest', 'help', 'hook-impl')
$ cargo nosuch [101]
error: no such command: `nosuch`
help: view all installed commands with `cargo --list`
help: find a package to install `nosuch` with `cargo search cargo-nosuch`
$ cargo run --manifest-path nosuch.toml [101]
error: manifest path `nosuch.toml` does not exist
$ rustc --nosuch [1]
error: Unrecognized option: 'nosuch'
$ rustfmt --check trait.rs [1]
Diff in /project/bad/trait.rs:1:
-use std::io; fn f() -> Result<(), io::Error> { Err(io::ErrorKind::PermissionDenied) }
+fn main() {
+    f();
+}
$ go nosuch [2]
go nosuch: unknown command
Run 'go help' for usage.
$ gofmt -l err.go; go vet ./nosuch [1]
err.go
go: cannot find main module, but found .git/config in /project
    to create a module there, run:
    cd .. && go mod init
$ mvn nosuch -o -q [1]
[ERROR] The goal you specified requires a project to execute but there is no POM in this directory (/project/bad). Please verify you invoked Maven from the correct directory. -> [Help 1]
[ERROR]
[ERROR]
[ERROR] For more information about the errors and possible solutions, please read the following articles:
[ERROR] [Help 1] http://cwiki.apache.org/confluence/display/MAVEN/MissingProjectException
$ javac nosuch.java [2]
error: file not found: nosuch.java
Usage: javac <options> <source files>
use --help for a list of possible options
$ ruby -e 'raise SecurityError, "Insecure operation"' [1]
-e:1:in `<main>': Insecure operation (SecurityError)
$ ruby -e 'File.read("missing")' [1]
-e:1:in `read': No such file or directory @ rb_sysopen - missing (Errno::ENOENT)
$ ruby -c err.sh [1]
err.sh:1: syntax error, unexpected end-of-input
if true; then
$ perl -e 'die "permission level too low\n"' [255]
permission level too low
$ perl -e 'open(F, "missing") or die "Cannot open: $!"' [2]
Cannot open: No such file or directory at -e line 1.
$ php -r 'fopen("missing","r") or exit(1);' [1]
Warning: fopen(missing): Failed to open stream: No such file or directory in Command line code on line 1
$ php -l bad.yaml; php -r 'foo();' [255]
No syntax errors detected in bad.yaml
Fatal error: Uncaught Error: Call to undefined function foo() in Command line code:1
Stack trace:
#0 {main}
  thrown in Command line code on line 1
$ git switch nosuch [128]
fatal: invalid reference: nosuch
$ git show HEAD:nosuch [128]
fatal: path 'nosuch' does not exist in 'HEAD'
$ git branch --contains nosuch [129]
error: malformed object name nosuch
$ git blame nosuch [128]
fatal: no such path 'nosuch' in HEAD
$ git cat-file -p nosuch [128]
fatal: Not a valid object name nosuch
$ git remote get-url nosuch [2]
error: No such remote 'nosuch'
$ git describe [128]
fatal: No names found, cannot describe anything.
$ git bisect good [1]
You need to start by "git bisect start"
$ git log --nosuch [128]
fatal: unrecognized argument: --nosuch
$ git ls-files --error-unmatch nosuch [1]
error: pathspec 'nosuch' did not match any file(s) known to git
Did you forget to 'git add'?
$ mv a.txt nosuch/dir/b.txt [1]
mv: cannot move 'a.txt' to 'nosuch/dir/b.txt': No such file or directory
$ cp -r bad a.txt [1]
cp: cannot overwrite non-directory 'a.txt' with directory 'bad'
$ cp a.txt a.txt [1]
cp: 'a.txt' and 'a.txt' are the same file
$ ln -s a.txt a.txt [1]
ln: failed to create symbolic link 'a.txt': File exists
$ touch nosuch/x [1]
touch: cannot touch 'nosuch/x': No such file or directory
$ rm bad [1]
rm: cannot remove 'bad': Is a directory
$ chmod nosuch a.txt [1]
chmod: invalid mode: ‘nosuch’
Try 'chmod --help' for more information.
$ chmod 644 missing [1]
chmod: cannot access 'missing': No such file or directory
$ head -n x a.txt [1]
head: invalid number of lines: ‘x’
$ tail missing.txt [1]
tail: cannot open 'missing.txt' for reading: No such file or directory
$ cut a.txt [1]
cut: you must specify a list of bytes, characters, or fields
Try 'cut --help' for more information.
$ wc missing.txt [1]
wc: missing.txt: No such file or directory
$ tee nosuch/out < a.txt [1]
tee: nosuch/out: No such file or directory
more
$ echo x > nosuch/out [1]
bash: line 1: nosuch/out: No such file or directory
$ cat < missing.txt [1]
bash: line 1: missing.txt: No such file or directory
$ source nosuch.sh [1]
bash: line 1: nosuch.sh: No such file or directory
$ bash nosuch.sh [127]
bash: nosuch.sh: No such file or directory
$ sh nosuch.sh [2]
sh: 0: cannot open nosuch.sh: No such file
$ bash -c 'local x=1; return 3' [2]
bash: line 1: local: can only be used in a function
bash: line 1: return: can only `return' from a function or sourced script
$ bash -c 'read -t 0.1 x < /dev/null; [ -n "$x" ] || { echo "error: no name given" >&2 [2]
error: no name given
$ bash -c 'diff <(echo a) <(echo "Permission denied")' [1]
1c1
< a
---
> Permission denied
$ wait 99999 [127]
bash: line 1: wait: pid 99999 is not a child of this shell
$ seq a [1]
seq: invalid floating point argument: ‘a’
Try 'seq --help' for more information.
$ sleep x [1]
sleep: invalid time interval ‘x’
Try 'sleep --help' for more information.
$ timeout x ls [125]
timeout: invalid time interval ‘x’
Try 'timeout --help' for more information.
$ basename [1]
basename: missing operand
Try 'basename --help' for more information.
$ stat missing [1]
stat: cannot statx 'missing': No such file or directory
$ du missing [1]
du: cannot access 'missing': No such file or directory
$ zip -T a.txt [3]
    zip warning: missing end signature--probably not a zip file (did you
    zip warning: remember to use binary mode when you transferred it?)
    zip warning: (if you are trying to read a damaged archive try -F)
zip error: Zip file structure invalid (a.txt)
$ gunzip missing.gz [1]
gzip: missing.gz: No such file or directory
$ tar cf /tmp/x.tar missing [2]
tar: missing: Cannot stat: No such file or directory
tar: Exiting with failure status due to previous errors
$ openssl enc -nosuch [1]
enc: Unknown cipher: nosuch
enc: Use -help for summary.
80EB1B923C7F0000:error:0308010C:digital envelope routines:inner_evp_generic_fetch:unsupported:../crypto/evp/evp_fetch.c:386:Global default library context, Algorithm (nosuch : 0), Properties (<null>)
$ ssh-keygen -l -f missing [255]
ssh-keygen: missing: No such file or directory
$ gpg --verify missing.sig [2]
gpg: directory '/home/dev/.gnupg' created
gpg: keybox '/home/dev/.gnupg/pubring.kbx' created
gpg: can't open 'missing.sig': No such file or directory
gpg: verify signatures failed: No such file or directory
$ psql --nosuch [1]
/usr/lib/postgresql/15/bin/psql: unrecognized option '--nosuch'
psql: hint: Try "psql --help" for more information.
$ redis-cli --nosuch x [1]
Unrecognized option or bad number of args for: '--nosuch'
$ sqlite3 :memory: 'create table t(a unique); insert into t values(1); insert into t values(1)' [19]
Error: stepping, UNIQUE constraint failed: t.a (19)
$ docker run [1]
docker: 'docker run' requires at least 1 argument
Usage:  docker run [OPTIONS] IMAGE [COMMAND] [ARG...]
See 'docker run --help' for more information
$ docker compose -f missing.yml config [125]
unknown shorthand flag: 'f' in -f
Usage:  docker [OPTIONS] COMMAND [ARG...]
Run 'docker --help' for more information
$ docker-compose -f missing.yml config [1]
.FileNotFoundError: [Errno 2] No such file or directory: './missing.yml'
$ terraform nosuch [1]
Terraform has no command named "nosuch".
To see all of Terraform's top-level commands, run:
  terraform -help
$ kubectl apply -f missing.yaml [1]
error: the path "missing.yaml" does not exist
$ gcloud nosuch [2]
ERROR: (gcloud) Invalid choice: 'nosuch'.
Usage: gcloud [optional flags] <group | command>
                         survey | version
For detailed information on this command and its flags, run:
  gcloud --help
$ aws s3 nosuch [2]
Note: AWS CLI version 2, the latest major version of the AWS CLI, is now stable and recommended for general use. For more information, see the AWS CLI version 2 installation instructions at: https://docs.aws.amazon.com/cli/latest/userguide/install-cliv2.html
usage: aws [options] <command> <subcommand> [<subcommand> ...] [parameters]
rm                                       | sync
mb                                       | rb
presign
$ gh nosuch [1]
unknown command "nosuch" for "gh"
Usage:  gh <command> <subcommand> [flags]
  ssh-key
  status
  workflow
$ gh pr view --nosuch [1]
unknown flag: --nosuch
Usage:  gh pr view [<number> | <url> | <branch>] [flags]
      --json fields       Output JSON with the specified fields
  -t, --template string   Format JSON output using a Go template; see "gh help formatting"
  -w, --web               Open a pull request in the browser
$ ip link show nosuch [1]
Device "nosuch" does not exist.
$ ip nosuch [1]
Object "nosuch" is unknown, try "ip help".
$ mount /nosuch [1]
mount: /nosuch: can't find in /etc/fstab.
$ kill -9 nosuch [1]
bash: line 1: kill: nosuch: arguments must be process or job IDs
$ strace nosuch [1]
strace: Can't stat 'nosuch': No such file or directory
$ make -C nosuch [2]
make: *** nosuch: No such file or directory.  Stop.
$ make -j x [2]
make: *** No rule to make target 'x'.  Stop.
$ systemctl --nosuch [1]
systemctl: unrecognized option '--nosuch'
$ dig @nosuch.. [1]
dig: couldn't get address for 'nosuch..': not found
$ nc -z [1]
usage: nc [-46CDdFhklNnrStUuvZz] [-I length] [-i interval] [-M ttl]
      [-m minttl] [-O length] [-P proxy_username] [-p source_port]
      [-q seconds] [-s sourceaddr] [-T keyword] [-V rtable] [-W recvlimit]
      [-w timeout] [-X proxy_protocol] [-x proxy_address[:port]]
      [destination] [port]
$ rsync --nosuch [1]
rsync: --nosuch: unknown option
rsync error: syntax or usage error (code 1) at main.c(1804) [client=3.2.7]
$ curl ftpx://example.com [1]
curl: (1) Protocol "ftpx" not supported or disabled in libcurl
$ curl -sSf http:/// [3]
curl: (3) URL using bad/illegal format or missing URL
$ wget ftpx://x [1]
ftpx://x: Unsupported scheme ‘ftpx’.
$ type nosuchtool [1]
bash: line 1: type: nosuchtool: not found
$ memcached -p 8457 [71]
failed to listen on TCP port 8457: Address already in use
$ python -m http.server 8458 [1]
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/usr/lib/python3.11/socketserver.py", line 472, in server_bind
    self.socket.bind(self.server_address)
OSError: [Errno 98] Address already in use
$ node -e 'const h=require("http");h.createServer().listen(8459,()=>h.createServer().listen(8459))' [1]
node:events:502
      throw er; // Unhandled 'error' event
  address: '::',
  port: 8459
}
$ socat TCP-LISTEN:8460 - [1]
2026/11/17 20:43:44 socat[6] E bind(5, {AF=2 0.0.0.0:8460}, 16): Address already in use
$ python -c 'import sys; sys.exit("upload failed: File too large (limit 5 MB)")' [1]
upload failed: File too large (limit 5 MB)
$ node -e 'throw new TypeError("the root node must be root of the tree, unknown host component")' [1]
[eval]:1
throw new TypeError("the root node must be root of the tree, unknown host component")
$ python -c 'import sys; sys.exit("error: unknown host key type")' [1]
error: unknown host key type
$ python -c 'import asyncio; asyncio.run(asyncio.start_server(print, "127.0.0.1", 8461)); raise LookupError("only root elements may have a title")' [1]
Traceback (most recent call last):
  File "<string>", line 1, in <module>
LookupError: only root elements may have a title
$ python -c 'raise ValueError("this operation requires root element <a>")' [1]
Traceback (most recent call last):
  File "<string>", line 1, in <module>
ValueError: this operation requires root element <a>
$ python -c 'import logging; logging.basicConfig(level=20); logging.info("GET /: connection refused"); raise SystemExit(3)' [3]
INFO:root:GET /: connection refused
"""


# Failures that could have either reason, and what was decided.
AMBIGUOUS = {
    # In the partial sandbox every refused file is reported like this, and a project seldom has files that its owner may not open.
    FILES: r"""
$ cat secret.key [1]
cat: secret.key: Permission denied
$ python load.py [1]
PermissionError: [Errno 13] Permission denied: 'secret.key'
""",
    # A missing folder gives the same message as a read-only one.
    WRITE: r"""
$ sqlite3 missing/app.db .tables [1]
Error: unable to open database "missing/app.db": unable to open database file
$ touch locked/x [1]
touch: cannot touch 'locked/x': Permission denied
""",
    # Without a network pip finds no versions of any package. It says the same of a package that does not exist, and with --no-index.
    NETWORK: r"""
$ pip install nosuchpackage [1]
ERROR: Could not find a version that satisfies the requirement nosuchpackage (from versions: none)
ERROR: No matching distribution found for nosuchpackage
""",
    # A misspelled program looks like one that is installed where the sandbox cannot see it.
    PROGRAM: r"""
$ xmllint missing.xml [127]
bash: line 1: xmllint: command not found
""",
    # A missing execute permission is much more common than a sandbox that refuses to execute a file.
    None: r"""
$ ./script.sh [126]
bash: line 1: ./script.sh: Permission denied
$ make [2]
./script.sh
make: ./script.sh: Permission denied
make: *** [Makefile:2: x] Error 127
""",
}

# Messages of programs that need hardware or services which a test machine does not have, from public reports.
REPORTED = {
    DEVICE: r"""
$ python train.py [1]
RuntimeError: No CUDA GPUs are available
$ nvidia-smi [9]
NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.
$ mvn verify [1]
java.lang.IllegalStateException: Could not find a valid Docker environment. Please see logs and check configuration
""",
    USER: r"""
$ sudo ls [1]
sudo: effective uid is not 0, is /usr/bin/sudo on a file system with the 'nosuid' option set or an NFS file system without root privileges?
""",
}

REASONS = {value for name, value in vars(sandbox_messages).items() if name.isupper() and not name.startswith("_")}


def cases(transcripts: dict[str, str] | dict[str | None, str]) -> list:
    found = []
    for reason, transcript in transcripts.items():
        for case in re.split(r"^\$ ", transcript, flags=re.MULTILINE)[1:]:
            first, _, output = case.partition("\n")
            command, _, exit_code = first.removesuffix("]").rpartition(" [")
            found.append(pytest.param(output, int(exit_code), reason, id=command))
    return found


@pytest.mark.parametrize(("output", "exit_code", "reason"), cases(SANDBOX))
def test_a_failure_because_of_the_sandbox_is_explained(output: str, exit_code: int, reason: str) -> None:
    assert sandbox_reason(output, exit_code) == reason


@pytest.mark.parametrize(("output", "exit_code", "reason"), cases({None: ORDINARY}))
def test_an_ordinary_failure_is_not_explained_with_the_sandbox(output: str, exit_code: int, reason: None) -> None:
    assert sandbox_reason(output, exit_code) is reason


@pytest.mark.parametrize(("output", "exit_code", "reason"), cases(AMBIGUOUS))
def test_an_ambiguous_failure_is_decided_by_the_more_common_cause(output: str, exit_code: int, reason: str | None) -> None:
    assert sandbox_reason(output, exit_code) == reason


@pytest.mark.parametrize(("output", "exit_code", "reason"), cases(REPORTED))
def test_a_reported_message_is_explained(output: str, exit_code: int, reason: str) -> None:
    assert sandbox_reason(output, exit_code) == reason


def test_every_reason_has_a_case() -> None:
    assert set(SANDBOX) == REASONS


def test_a_command_that_succeeded_has_no_reason() -> None:
    assert sandbox_reason("curl: (6) Could not resolve host: example.com\n", 0) is None


def test_a_command_that_was_ended_has_a_reason() -> None:
    output = " WARN  GET https://registry.example.org/left-pad error (EAI_AGAIN). Will retry in 10 seconds. 2 retries left.\n"
    assert sandbox_reason(output, None) == NETWORK


@pytest.mark.parametrize("exit_code", [153, -25])
def test_the_signal_for_large_files_needs_no_message(exit_code: int) -> None:
    assert sandbox_reason("", exit_code) == LIMIT


def test_a_missing_program_counts_only_if_it_gave_the_exit_code() -> None:
    output = "bash: line 1: nosuchtool: command not found\n1 of 3 checks failed\n"
    assert sandbox_reason(output, 127) == PROGRAM
    assert sandbox_reason(output, 1) is None


@pytest.mark.parametrize(
    ("output", "names"),
    [
        ("/bin/sh: 1: sponge: not found\njq: error: Could not open file a.json: No such file or directory\n", {"sponge"}),
        ("bash: line 1: rg: command not found", {"rg"}),
        ("xargs: black: No such file or directory", {"black"}),
        ("timeout: failed to run command ‘go’: No such file or directory", {"go"}),
        ("env: 'python3.9': No such file or directory", {"python3.9"}),
        ("/usr/bin/env: ‘node -r x’: No such file or directory", {"node"}),
        ("./x.sh: line 3: ./tool: No such file or directory", {"./tool"}),
        ("bash: line 1: ./a.out: cannot execute: required file not found", {"./a.out"}),
        ("cat: a.txt: No such file or directory", set()),
        ("ok", set()),
    ],
)
def test_the_names_of_missing_programs_are_found(output: str, names: set[str]) -> None:
    assert missing_programs(output) == names


def test_only_the_end_of_the_output_counts() -> None:
    message = "fatal: unable to access 'https://github.com/': Could not resolve host: github.com\n"
    assert sandbox_reason("compiling\n" * 100_000 + message, 1) == NETWORK
    assert sandbox_reason(message + "compiling\n" * 1_000, 1) is None


def test_colours_and_overwritten_lines_are_understood() -> None:
    output = (
        "\x1b[31m│\x1b[0m \x1b[0m\x1b[1m\x1b[31mError: \x1b[0mFailed to query available provider packages\x1b[0m\n"
        "\x1b[31m│\x1b[0m \x1b[0m10.0.0.53:53: connect: \x1b[1mnetwork is unreachable\x1b[0m\n"
    )
    assert sandbox_reason(output, 1) == NETWORK
    assert sandbox_reason("  0%\r 50%\rcurl: (6) Could not resolve host: example.com\n", 6) == NETWORK


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        " ",
        ": ",
        "\n",
        "cannot create ",
        "E  ",
        "warning",
        "x: permission denied x",
        "/dev/x",
        "make] Error 1",
        "\x1b[",
        "::",
        "_" * 60,
        "- ",
    ],
)
def test_hostile_output_is_read_quickly(piece: str) -> None:
    assert sandbox_reason(piece * 200_000, 1) in (None, *REASONS)


@pytest.mark.parametrize(
    ("output", "port"),
    [
        ('psycopg2.OperationalError: connection to server at "localhost" (127.0.0.1), port 5432 failed: Connection refused\n\tIs the server', 5432),
        ('E   psycopg.OperationalError: connection failed: connection to server at "127.0.0.1", port 5433 failed: Connection refused', 5433),
        ("AggregateError\nError: connect ECONNREFUSED ::1:5432\nError: connect ECONNREFUSED 127.0.0.1:5432\n    at TCPConnectWrap", 5432),
        ("OSError: Multiple exceptions: [Errno 111] Connect call failed ('::1', 54, 0, 0), [Errno 111] Connect call failed ('127.0.0.1', 54)", 54),
        ("redis.exceptions.ConnectionError: Error 111 connecting to localhost:6379. Connection refused.", 6379),
        ("redis.exceptions.ConnectionError: Error 13 connecting to localhost:6379. Permission denied.", 6379),
        ("curl: (7) Failed to connect to localhost port 8000 after 0 ms: Couldn't connect to server", 8000),
        ("HTTPConnectionPool(host='localhost', port=8080): Max retries exceeded (Caused by X: [Errno 111] Connection refused'))", 8080),
        ("dial tcp 127.0.0.1:8080: connect: connection refused", 8080),
        ("pymongo.errors.ServerSelectionTimeoutError: localhost:27017: [Errno 111] Connection refused", 27017),
        ("org.postgresql.util.PSQLException: Connection to localhost:5432 refused. Check that the hostname and port are correct", 5432),
        ("localhost:5432 - no response", 5432),
        ("connect to 127.0.0.1:1: Connection refused\nconnect to 127.0.0.1:2: Connection refused", 2),
        ("address = ('127.0.0.1', 5439), timeout = 3\n>   sock.connect(sa)\nE   PermissionError: [Errno 13] Permission denied\n\n/usr/lib/python3.11/socket.py:836: PermissionError\n=", 5439),
        ("address = ('localhost', 6390)\nE   ConnectionRefusedError: [Errno 111] Connection refused\n\n/usr/lib/python3.11/socket.py:836: ConnectionRefusedError", 6390),
        ("address = ('localhost', 6390)\nE   ValueError: x\n\nsrc/app.py:3: ValueError", None),
        ("ConnectionRefusedError: [Errno 111] Connection refused", None),
        ('connection to server at "192.0.2.5", port 5432 failed: Connection refused', None),
        ("dial tcp 127.0.0.1:99999: connect: connection refused", None),
        ("Listening on 127.0.0.1:8000\nTypeError: x is undefined", None),
    ],
)  # fmt: skip
def test_the_port_of_a_refused_connection_is_found(output: str, port: int | None) -> None:
    assert refused_port(output) == port
    assert port is None or sandbox_reason(output, 1) in (SERVICE, SOCKET)

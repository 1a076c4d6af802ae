"""An authority that signs certificates for the nodes of a job, made with the command openssl."""
import datetime
import os
import subprocess

CONFIG = """
[ca]
default_ca = default
[default]
database = index
new_certs_dir = .
serial = serial
default_md = sha256
policy = anything
unique_subject = no
certificate = ca.pem
private_key = ca.key
[anything]
commonName = supplied
"""
LEAF = """basicConstraints = critical, CA:{ca}
keyUsage = critical, digitalSignature{sign}
extendedKeyUsage = serverAuth, clientAuth
"""


def openssl(*words, folder):
    done = subprocess.run(
        ["openssl", *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"openssl {words[0]}: {done.stdout}")


def time_text(from_now_s):
    when = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=from_now_s)
    return when.strftime("%Y%m%d%H%M%SZ")


class Authority:
    """Its files lie in a folder of their own; `pem` is the path of its certificate."""

    def __init__(self, folder, key=("EC", "ec_paramgen_curve:P-256")):
        os.makedirs(folder)
        self.folder, self.key = folder, key
        self.pem = os.path.join(folder, "ca.pem")
        self.count = 0
        for name, text in (("ca.cnf", CONFIG), ("index", ""), ("serial", "1000\n")):
            with open(os.path.join(folder, name), "w", encoding="ascii") as file:
                file.write(text)
        self.make_key("ca.key")
        openssl(
            *("req", "-x509", "-new", "-key", "ca.key", "-subj", "/CN=authority", "-days", "30"),
            *("-out", "ca.pem", "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
            folder=folder,
        )

    def make_key(self, name):
        algorithm, option = self.key
        openssl(
            *("genpkey", "-algorithm", algorithm, "-pkeyopt", option, "-out", name),
            folder=self.folder,
        )
        os.chmod(os.path.join(self.folder, name), 0o600)

    def sign(self, names, begins_s=-3600, ends_s=86400, ca=False):
        """A certificate for names such as "URI:spiffe://…" or "DNS:…", or for none, valid
        from and to these times from now. Returns the paths of certificate and private key."""
        self.count += 1
        name = f"leaf{self.count}"
        self.make_key(name + ".key")
        with open(os.path.join(self.folder, name + ".ext"), "w", encoding="ascii") as file:
            file.write(LEAF.format(ca=str(ca).upper(), sign=", keyCertSign" if ca else ""))
            if names:
                file.write(f"subjectAltName = {', '.join(names)}\n")
        openssl(
            *("req", "-new", "-key", name + ".key", "-subj", "/CN=node", "-out", name + ".csr"),
            folder=self.folder,
        )
        openssl(
            *("ca", "-batch", "-notext", "-config", "ca.cnf", "-extfile", name + ".ext"),
            *("-startdate", time_text(begins_s), "-enddate", time_text(ends_s)),
            *("-in", name + ".csr", "-out", name + ".pem"),
            folder=self.folder,
        )
        return [os.path.join(self.folder, name + end) for end in (".pem", ".key")]

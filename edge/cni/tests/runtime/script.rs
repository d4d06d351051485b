//! The script of a Kubernetes node, run on a folder that represents the node.

use crate::machine::names;
use crate::manifest::contrib;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;
use testing::require;

const CONFLIST: &str = r#"{
  "plugins": [
    {
      "type": "grantway-cni",
      "ipam": { "type": "host-local", "ranges": [@RANGES@], "routes": [@ROUTES@] }
    }
  ]
}"#;

/// A folder with everything that the script reads or writes.
struct Host(TempDir);

impl Host {
    fn new() -> Self {
        let host = Self(TempDir::new().unwrap());
        for folder in ["files", "plugins", "path"] {
            fs::create_dir(host.path(folder)).unwrap();
        }
        host.write("files/10-grantway.conflist", CONFLIST);
        host.write("files/grantway.conf", "addresses = [@GATEWAYS@]\n");
        host.program("plugins/grantway-cni", "echo first");
        for plugin in ["host-local", "loopback"] {
            host.program(&format!("plugins/{plugin}"), "echo theirs");
        }
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn program(&self, name: &str, script: &str) {
        testing::place_script(&self.path(name), script);
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let mut names = names(&self.path(folder));
        names.sort();
        names
    }

    fn command(&self, what: &str) -> Command {
        let mut path = self.path("path").into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut script = Command::new("sh");
        script
            .arg(contrib("node.sh"))
            .arg(what)
            .env("PATH", path)
            .env("CNI_BIN_DIR", self.path("host/bin"))
            .env("CNI_CONF_DIR", self.path("host/net.d"))
            .env("PLUGINS", self.path("plugins"))
            .env("FILES", self.path("files"))
            .env_remove("POD_CIDR")
            .env_remove("NODE_NAME")
            .stdin(Stdio::null());
        script
    }

    fn of_subnet(&self, what: &str, subnet: &str) -> Output {
        let mut command = self.command(what);
        command.env("POD_CIDR", subnet).output().unwrap()
    }

    /// Returns the address management of the installed network.
    fn ipam(&self) -> Value {
        let conflist = self.read("host/net.d/10-grantway.conflist");
        let conflist: Value = serde_json::from_str(&conflist).unwrap();
        conflist["plugins"][0]["ipam"].clone()
    }

    fn install(&self) -> Output {
        self.of_subnet("install", "10.244.3.0/24")
    }
}

#[track_caller]
fn done(run: &Output) -> String {
    assert!(run.status.success(), "{run:?}");
    String::from_utf8(run.stdout.clone()).unwrap()
}

#[track_caller]
fn refused(run: &Output, why: &str) {
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(!run.status.success() && said.contains(why), "{run:?}");
}

#[test]
fn a_node_gets_the_plugins_and_its_subnet() {
    let host = Host::new();
    done(&host.install());
    let plugins = ["grantway-cni", "host-local", "loopback"];
    assert_eq!(host.names("host/bin"), plugins);
    assert_eq!(host.names("host/net.d"), ["10-grantway.conflist"]);
    let ipam = host.ipam();
    assert_eq!(ipam["ranges"], json!([[{ "subnet": "10.244.3.0/24" }]]));
    assert_eq!(ipam["routes"], json!([{ "dst": "0.0.0.0/0" }]));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&host.path("host/bin/grantway-cni")), 0o755);
    assert_eq!(mode(&host.path("host/net.d/10-grantway.conflist")), 0o644);
    let conf = done(&host.of_subnet("render", "10.244.3.0/24"));
    assert_eq!(conf, "addresses = [\"10.244.3.1/24\"]\n");
    let conf = done(&host.of_subnet("render", "10.244.255.0/24"));
    assert_eq!(conf, "addresses = [\"10.244.255.1/24\"]\n");

    // A second run replaces the plugin, and leaves other plugins unchanged.
    host.program("plugins/grantway-cni", "echo second");
    host.program("host/bin/host-local", "echo their own");
    done(&host.install());
    assert!(host.read("host/bin/grantway-cni").contains("second"));
    assert!(host.read("host/bin/host-local").contains("their own"));

    for _ in 0..2 {
        done(&host.command("remove").output().unwrap());
        assert_eq!(host.names("host/bin"), ["host-local", "loopback"]);
        assert!(host.names("host/net.d").is_empty());
    }
}

#[test]
fn a_node_of_dual_stack_has_both_subnets() {
    let host = Host::new();
    let both = "10.244.3.0/24,fd00:10:244:3::/64";
    done(&host.of_subnet("install", both));
    let ipam = host.ipam();
    let ranges = json!([[{ "subnet": "10.244.3.0/24" }], [{ "subnet": "fd00:10:244:3::/64" }]]);
    assert_eq!(ipam["ranges"], ranges);
    assert_eq!(
        ipam["routes"],
        json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }])
    );
    assert_eq!(
        done(&host.of_subnet("render", both)),
        "addresses = [\"10.244.3.1/24\", \"fd00:10:244:3::1/64\"]\n"
    );
    assert_eq!(
        done(&host.of_subnet("render", "fd00:10:244::300/120")),
        "addresses = [\"fd00:10:244::301/120\"]\n"
    );
}

#[test]
fn a_running_program_is_replaced() {
    require!(tool("sleep"));
    let host = Host::new();
    let sleep = std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .map(|folder| folder.join("sleep"))
        .find(|path| path.is_file())
        .unwrap();
    fs::copy(sleep, host.path("plugins/grantway-cni")).unwrap();
    done(&host.install());
    let runs = Command::new(host.path("host/bin/grantway-cni"))
        .arg("60")
        .spawn();
    let mut runs = runs.unwrap();
    done(&host.install());
    runs.kill().unwrap();
    runs.wait().unwrap();
}

#[test]
fn errors_are_reported_before_anything_is_written() {
    let host = Host::new();
    let nothing = |why: &str| {
        refused(&host.install(), why);
        let host = [host.names("host/bin"), host.names("host/net.d")];
        assert_eq!(host.concat(), Vec::<String>::new());
    };
    for subnet in [
        "10.244.3.0",
        "10.244.300.0/24",
        "10.244.3.255/24",
        "fd00::/128",
        "10.244.3.0/24,fd00::g/112",
        "010.0.0.0/8",
        "$(id)/24",
    ] {
        let run = host.of_subnet("install", subnet);
        refused(&run, "is not a subnet, such as");
    }
    refused(
        &host.command("install").output().unwrap(),
        "neither POD_CIDR nor NODE_NAME",
    );
    refused(
        &host.command("instal").output().unwrap(),
        "install|render|remove",
    );
    for plugin in ["host-local", "loopback"] {
        fs::remove_file(host.path(&format!("plugins/{plugin}"))).unwrap();
        nothing(&format!("the plugin {plugin} is neither in"));
        host.program(&format!("plugins/{plugin}"), "");
    }
    fs::rename(host.path("files"), host.path("elsewhere")).unwrap();
    nothing("grantway.conflist does not exist");
    fs::rename(host.path("elsewhere"), host.path("files")).unwrap();
    host.write("files/10-grantway.conflist", "{}");
    nothing("names no plugin");
    host.write("files/10-grantway.conflist", r#"{"type": "../../bin/sh"}"#);
    nothing("../../bin/sh is not a plugin name");
    host.write("files/10-grantway.conflist", CONFLIST);
    // A runtime would use the network of the other file instead.
    fs::create_dir_all(host.path("host/net.d")).unwrap();
    host.write("host/net.d/05-other.conf", "{}");
    refused(&host.install(), "05-other.conf takes precedence");
    assert_eq!(host.names("host/net.d"), ["05-other.conf"]);
    fs::rename(
        host.path("host/net.d/05-other.conf"),
        host.path("host/net.d/87-other.conf"),
    )
    .unwrap();
    done(&host.install());
}

/// A mock `curl` records its arguments.
#[test]
fn the_subnet_is_requested_from_the_api_server() {
    let host = Host::new();
    let curl = "cat >\"$(dirname \"$0\")/stdin\"\n\
                echo \"$*\" >\"$(dirname \"$0\")/args\"\ncat \"$(dirname \"$0\")/answer\"\n";
    host.program("path/curl", curl);
    host.write("token", "secret");
    let ask = || {
        host.command("render")
            .env("NODE_NAME", "node-3")
            .env("SERVICE_ACCOUNT", host.0.path())
            .env("KUBERNETES_SERVICE_HOST", "fd00::1")
            .env("KUBERNETES_SERVICE_PORT", "6443")
            .output()
            .unwrap()
    };
    let of_node = concat!(
        r#"{"kind":"Node","spec":{"podCIDR":"10.244.7.0/25","#,
        r#""podCIDRs":["10.244.7.0/25","fd00:7::/64"]}}"#
    );
    for answer in [
        of_node.to_owned(),
        of_node.replace(',', ",\n  ").replace(':', ": "),
    ] {
        host.write("path/answer", &answer);
        assert_eq!(
            done(&ask()),
            "addresses = [\"10.244.7.1/25\", \"fd00:7::1/64\"]\n"
        );
    }
    let args = host.read("path/args");
    assert!(
        args.ends_with(" https://[fd00::1]:6443/api/v1/nodes/node-3\n"),
        "{args}"
    );
    assert!(
        args.contains("--cacert") && !args.contains("secret"),
        "{args}"
    );
    let stdin = host.read("path/stdin");
    assert_eq!(stdin, "header = \"Authorization: Bearer secret\"\n");
    host.write("path/answer", r#"{"kind":"Node","spec":{}}"#);
    refused(&ask(), "the node node-3 has no podCIDRs");
    host.program("path/curl", "exit 22");
    refused(&ask(), "does not describe the node node-3");
}

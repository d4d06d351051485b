//! Kubeconfig files: the server and the login of the current context.

use super::login::{Login, Material};
use super::url::ServerUrl;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::path::Path;
use yaml_rust2::{Yaml, YamlLoader};

/// The current context of a kubeconfig.
#[derive(Debug)]
pub(super) struct Kubeconfig {
    /// The address of the server.
    pub(super) url: ServerUrl,
    /// The certificates of its authority.
    pub(super) authority: Option<Material>,
    /// The name in its certificate, if it is not the host of the URL.
    pub(super) server_name: Option<String>,
    /// The user's login.
    pub(super) login: Login,
}

impl Kubeconfig {
    /// Decodes a file. Relative paths start at `folder`.
    pub(super) fn of(text: &str, folder: &Path) -> Result<Self, String> {
        let documents = YamlLoader::load_from_str(text).map_err(|error| error.to_string())?;
        let file = documents.first().ok_or("it is empty")?;
        let current = text_of(file, "current-context")?.ok_or("it has no `current-context`")?;
        let context = entry(file, "contexts", "context", current)?;
        let name_of = |key: &str| {
            let name = text_of(context, key)?;
            name.ok_or_else(|| format!("the context `{current}` has no `{key}`"))
        };
        let cluster = entry(file, "clusters", "cluster", name_of("cluster")?)?;
        let user = entry(file, "users", "user", name_of("user")?)?;
        if cluster["insecure-skip-tls-verify"].as_bool() == Some(true) {
            let why = "`insecure-skip-tls-verify` is set: write `certificate-authority`";
            return Err(why.to_owned());
        }
        let url = text_of(cluster, "server")?.ok_or("its cluster has no `server`")?;
        Ok(Self {
            url: url.parse()?,
            authority: material(cluster, "certificate-authority", folder)?,
            server_name: text_of(cluster, "tls-server-name")?.map(str::to_owned),
            login: login(user, folder)?,
        })
    }
}

/// Returns a text, if the key is set.
fn text_of<'y>(of: &'y Yaml, key: &str) -> Result<Option<&'y str>, String> {
    match &of[key] {
        Yaml::BadValue | Yaml::Null => Ok(None),
        Yaml::String(text) if text.is_empty() => Ok(None),
        Yaml::String(text) => Ok(Some(text)),
        _ => Err(format!("`{key}` is not a text")),
    }
}

/// Returns the entry of a list that has this name.
fn entry<'y>(file: &'y Yaml, list: &str, key: &str, name: &str) -> Result<&'y Yaml, String> {
    let all = file[list].as_vec().into_iter().flatten();
    let mut found = all.filter(|entry| entry["name"].as_str() == Some(name));
    let found = found.next().map(|entry| &entry[key]);
    found.ok_or_else(|| format!("`{list}` has no `{name}`"))
}

/// Returns the value of `KEY-data`, or the file that `KEY` names.
fn material(of: &Yaml, key: &str, folder: &Path) -> Result<Option<Material>, String> {
    let data = format!("{key}-data");
    if let Some(text) = text_of(of, &data)? {
        let bytes = base64(text).ok_or_else(|| format!("`{data}` is not in base64"))?;
        return Ok(Some(Material::Bytes(bytes)));
    }
    let path = text_of(of, key)?;
    Ok(path.map(|path| Material::File(folder.join(path))))
}

fn login(user: &Yaml, folder: &Path) -> Result<Login, String> {
    if let Some(path) = text_of(user, "tokenFile")? {
        return Ok(Login::Token(Material::File(folder.join(path))));
    }
    if let Some(token) = text_of(user, "token")? {
        return Ok(Login::Token(Material::Bytes(token.into())));
    }
    let chain = material(user, "client-certificate", folder)?;
    let key = material(user, "client-key", folder)?;
    match (chain, key) {
        (Some(chain), Some(key)) => Ok(Login::Certificate { chain, key }),
        (None, None) => {
            let others = ["exec", "auth-provider", "username"];
            let other = others.iter().find(|other| !user[**other].is_badvalue());
            other.map_or(Ok(Login::Anonymous), |other| {
                Err(format!(
                    "`{other}` is not supported: use a token or a certificate"
                ))
            })
        }
        _ => Err("`client-certificate` and `client-key` belong together".into()),
    }
}

/// Decodes base64 with padding (RFC 4648, section 4), which may be on several lines.
fn base64(text: &str) -> Option<Vec<u8>> {
    let is_digit = |byte: &u8| !byte.is_ascii_whitespace();
    let digits: Vec<u8> = text.bytes().filter(is_digit).collect();
    STANDARD.decode(digits).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a@b\ncontexts:\n- name: a@b\n  \
             context: {{cluster: b, user: a}}\nclusters:\n- name: b\n  cluster:\n    server: \
             https://192.0.2.1:6443\n    certificate-authority-data: YXV0aA==\nusers:\n\
             - name: a\n  user: {user}\n"
        )
    }

    fn read(text: &str) -> Result<Kubeconfig, String> {
        Kubeconfig::of(text, Path::new("/home"))
    }

    #[test]
    fn logins_are_tokens_or_certificates() {
        let bytes = |text: &str| Material::Bytes(text.as_bytes().to_vec());
        for (user, login) in [
            ("{token: abc}", Login::Token(bytes("abc"))),
            (
                "{tokenFile: t, token: abc}",
                Login::Token(Material::File("/home/t".into())),
            ),
            (
                "{client-certificate-data: Yw==, client-key: /k}",
                Login::Certificate {
                    chain: bytes("c"),
                    key: Material::File("/k".into()),
                },
            ),
            ("{}", Login::Anonymous),
        ] {
            let server = read(&file(user)).unwrap();
            assert_eq!(server.login, login);
            assert_eq!(server.authority, Some(bytes("auth")));
            assert_eq!(server.url.to_string(), "https://192.0.2.1:6443");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let good = file("{token: abc}");
        for (text, expected) in [
            ("", "it is empty"),
            ("a: [", "while parsing"),
            ("7", "no `current-context`"),
            (
                &good.replace("name: a@b", "name: x"),
                "`contexts` has no `a@b`",
            ),
            (&good.replace("cluster: b,", ""), "has no `cluster`"),
            (
                &good.replace("name: a\n", "name: x\n"),
                "`users` has no `a`",
            ),
            (&good.replace("YXV0aA==", "YXV0aA="), "not in base64"),
            (&good.replace("server:", "host:"), "no `server`"),
            (
                &good.replace(
                    "certificate-authority-data",
                    "insecure-skip-tls-verify: true #",
                ),
                "insecure-skip-tls-verify",
            ),
            (&file("{exec: {command: x}}"), "`exec` is not supported"),
            (&file("{client-key: k}"), "belong together"),
            (&file("{token: [1]}"), "`token` is not a text"),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
    }

    #[test]
    fn base64_is_decoded() {
        for (text, bytes) in [
            ("", Some("")),
            ("Zg==", Some("f")),
            ("Zm8=", Some("fo")),
            ("Zm9v", Some("foo")),
            ("Zm9v\nYmE=", Some("fooba")),
            ("Zh==", None),
            ("Z===", None),
            ("====", None),
            ("Zm9", None),
            ("Zm-_", None),
        ] {
            let decoded = base64(text);
            assert_eq!(decoded.as_deref(), bytes.map(str::as_bytes), "{text}");
        }
    }
}

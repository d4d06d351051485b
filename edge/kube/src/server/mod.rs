//! The API server: address, trust, login, and requests.
//!
//! Files with certificates and tokens are read again for each request, because they change while
//! the program runs.

mod connection;
mod http;
mod kubeconfig;
mod login;
mod url;

pub use login::{Login, Material};
pub use url::ServerUrl;

pub(crate) use connection::Limits;
pub(crate) use http::HttpBody;

use connection::{ApiConnection, TimedSocket};
use http::HttpResponse;
use kubeconfig::Kubeconfig;
use login::{named, read_file, wrong};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

/// The folder of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServer {
    url: ServerUrl,
    /// The certificates of the authorities that may have signed the server's.
    authority: Option<Material>,
    /// The name in the server's certificate, if it is not the host of the URL.
    name: Option<String>,
    login: Login,
}

impl ApiServer {
    /// Returns the server at this address.
    ///
    /// # Errors
    ///
    /// Returns an error if no authority is given for `https`, or a login is given for `http`, which
    /// does not protect it.
    pub fn new(url: ServerUrl, authority: Option<Material>, login: Login) -> Result<Self, String> {
        match (url.is_tls, &authority, &login) {
            (true, None, _) => Err(format!(
                "{url}: no file of certificate authorities is given"
            )),
            (false, _, Login::Token(_) | Login::Certificate { .. }) => Err(format!(
                "{url}: a login is only sent to a server with `https://`"
            )),
            _ => Ok(Self {
                url,
                authority,
                name: None,
                login,
            }),
        }
    }

    /// Returns the API server of the cluster in which this process is a pod.
    ///
    /// # Errors
    ///
    /// Returns an error if the variables of a pod are not set.
    pub fn of_pod(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let host = variable("KUBERNETES_SERVICE_HOST").ok_or(
            "KUBERNETES_SERVICE_HOST is not set, so this is not a pod: pass `--kubeconfig` or \
             `--server`",
        )?;
        let port = variable("KUBERNETES_SERVICE_PORT").unwrap_or_else(|| "443".to_owned());
        let host = match host.contains(':') {
            true => format!("[{host}]"),
            false => host,
        };
        let file = |name| Material::File(Path::new(SERVICE_ACCOUNT).join(name));
        let url = format!("https://{host}:{port}").parse()?;
        Self::new(url, Some(file("ca.crt")), Login::Token(file("token")))
    }

    /// Returns the API server of the current context of a kubeconfig.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, is not a kubeconfig, or needs a plugin.
    pub fn of_kubeconfig(path: &Path) -> Result<Self, String> {
        let text = read_file(path).map_err(|error| error.to_string());
        let text = text.and_then(|text| String::from_utf8(text).map_err(|e| e.to_string()));
        let folder = path.parent().unwrap_or(Path::new(""));
        let server = text.and_then(|text| {
            let file = Kubeconfig::of(&text, folder)?;
            let mut server = Self::new(file.url, file.authority, file.login)?;
            server.name = file.server_name;
            Ok(server)
        });
        server.map_err(|why| format!("{}: {why}", path.display()))
    }

    /// Requests a path, which begins with `/`.
    pub(crate) fn get(
        &self,
        path: &str,
        limits: Limits,
    ) -> io::Result<(u16, HttpBody<impl Read + use<>>)> {
        self.exchange(path, limits)
            .map_err(|error| named(&self.url.to_string(), &error))
    }

    fn exchange(&self, path: &str, limits: Limits) -> io::Result<(u16, HttpBody<ApiConnection>)> {
        let authorization = match &self.login {
            Login::Token(token) => format!("Authorization: Bearer {}\r\n", token.token()?),
            Login::Anonymous | Login::Certificate { .. } => String::new(),
        };
        let tls = match self.url.is_tls {
            true => Some(self.tls()?),
            false => None,
        };
        let socket = TimedSocket::connect(&self.url.host, self.url.port, limits)?;
        let mut connection = match tls {
            Some(tls) => ApiConnection::Tls(Box::new(StreamOwned::new(tls, socket))),
            None => ApiConnection::Plain(socket),
        };
        let request = format!(
            "GET {}{path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: grantway-kube/{}\r\n\
             Accept: application/json\r\nConnection: close\r\n{authorization}\r\n",
            self.url.path,
            self.url.authority(),
            env!("CARGO_PKG_VERSION"),
        );
        connection.write_all(request.as_bytes())?;
        connection.flush()?;
        let answer = HttpResponse::read(connection)?;
        Ok((answer.status, answer.body))
    }

    fn tls(&self) -> io::Result<ClientConnection> {
        let mut roots = RootCertStore::empty();
        let authorities = self.authority.as_ref().map(Material::certificates);
        let authorities = authorities.transpose()?.unwrap_or_default();
        if let (0, _) = roots.add_parsable_certificates(authorities) {
            let place = self.authority.as_ref().map(Material::place);
            let place = place.unwrap_or_default();
            return Err(wrong(format!(
                "{place}: no certificate in it is understood"
            )));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots);
        let config = match &self.login {
            Login::Certificate { chain, key } => config
                .with_client_auth_cert(chain.certificates()?, key.key()?)
                .map_err(|error| wrong(format!("{}: {error}", chain.place())))?,
            Login::Anonymous | Login::Token(_) => config.with_no_client_auth(),
        };
        let name = self.name.as_ref().unwrap_or(&self.url.host).clone();
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_only_sent_over_tls() {
        let token = || Login::Token(Material::Bytes(b"t".to_vec()));
        let of = |url: &str, authority: Option<Material>, login: Login| {
            ApiServer::new(url.parse().unwrap(), authority, login)
        };
        let why = of("http://127.0.0.1:8001", None, token()).unwrap_err();
        assert!(
            why.contains("only sent to a server with `https://`"),
            "{why}"
        );
        let why = of("https://127.0.0.1:6443", None, token()).unwrap_err();
        assert!(why.contains("no file of certificate authorities"), "{why}");
        of("http://127.0.0.1:8001", None, Login::Anonymous).unwrap();
    }

    #[test]
    fn pods_find_their_server_by_variables() {
        let of = |host: &'static str| {
            ApiServer::of_pod(move |name| match name {
                "KUBERNETES_SERVICE_HOST" => Some(host.to_owned()),
                "KUBERNETES_SERVICE_PORT" => Some("6443".to_owned()),
                _ => None,
            })
        };
        assert_eq!(
            of("fd00::1").unwrap().url.to_string(),
            "https://[fd00::1]:6443"
        );
        assert_eq!(
            of("10.96.0.1").unwrap().url.to_string(),
            "https://10.96.0.1:6443"
        );
        let why = ApiServer::of_pod(|_| None).unwrap_err();
        assert!(why.contains("--kubeconfig"), "{why}");
    }

    #[test]
    fn tokens_that_could_end_the_header_are_rejected() {
        let token = Login::Token(Material::Bytes(b"t\r\nX: y".to_vec()));
        let authority = Some(Material::Bytes(Vec::new()));
        let url = "https://127.0.0.1:1".parse().unwrap();
        let server = ApiServer::new(url, authority, token).unwrap();
        let second = std::time::Duration::from_secs(1);
        let limits = Limits {
            silence: second,
            whole: second,
        };
        let error = server.get("/", limits).err().unwrap();
        assert!(error.to_string().contains("it is not a token"), "{error}");
    }
}

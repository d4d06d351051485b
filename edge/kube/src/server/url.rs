//! The address of an API server.

use std::fmt;
use std::str::FromStr;

/// An address `https://HOST[:PORT][/PATH]`, or with `http`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    /// Whether it is `https`.
    pub(super) is_tls: bool,
    /// A name or an address, without brackets.
    pub(super) host: String,
    /// The port.
    pub(super) port: u16,
    /// The path before the API's paths, which is empty or begins with `/`.
    pub(super) path: String,
}

impl ServerUrl {
    /// Returns host and port.
    pub(super) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for ServerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not an address such as https://192.0.2.1:6443");
        let (is_tls, rest) = match text.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            _ => return Err(wrong()),
        };
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
                (host, (!port.is_empty()).then_some(port))
            }
            None => match authority.split_once(':') {
                Some((host, _)) => (host, authority.get(host.len()..)),
                None => (authority, None),
            },
        };
        let port = match port {
            None if is_tls => 443,
            None => 80,
            Some(port) => {
                let digits = port.strip_prefix(':').ok_or_else(wrong)?;
                digits.parse().map_err(|_| wrong())?
            }
        };
        let is_host = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
        let is_path = |c: char| c.is_ascii_graphic() && !"?#".contains(c);
        if host.is_empty() || !host.chars().all(is_host) || !path.chars().all(is_path) {
            return Err(wrong());
        }
        Ok(Self {
            is_tls,
            host: host.to_owned(),
            port,
            path: path.trim_end_matches('/').to_owned(),
        })
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_scheme_and_a_host() {
        for (text, same) in [
            ("https://api.example.com", "https://api.example.com:443"),
            ("http://127.0.0.1", "http://127.0.0.1:80"),
            ("https://[fd00::1]:6443/", "https://[fd00::1]:6443"),
            ("https://[fd00::1]", "https://[fd00::1]:443"),
            ("https://a:1/k8s/c-1/", "https://a:1/k8s/c-1"),
        ] {
            assert_eq!(text.parse::<ServerUrl>().unwrap().to_string(), same);
        }
        for text in [
            "",
            "api.example.com:6443",
            "ftp://a",
            "https://",
            "https://a:",
            "https://a:70000",
            "https://[::1",
            "https://[::1]6443",
            "https://user@a",
            "https://a/x y",
            "https://a/?x",
            "https://a\r\nb",
        ] {
            let why = text.parse::<ServerUrl>().unwrap_err();
            assert!(why.contains("is not an address"), "{why}");
        }
    }
}

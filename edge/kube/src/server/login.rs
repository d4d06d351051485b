//! Certificates, keys and tokens.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Limit of a file with a certificate, a key or a token, bytes.
const FILE_MAX: u64 = 1 << 20;

/// Bytes, or the file that has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Material {
    /// Bytes.
    Bytes(Vec<u8>),
    /// A file, which may change.
    File(PathBuf),
}

impl Material {
    fn read(&self) -> io::Result<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.clone()),
            Self::File(path) => {
                read_file(path).map_err(|error| named(&path.display().to_string(), &error))
            }
        }
    }

    /// Returns the certificates.
    pub(super) fn certificates(&self) -> io::Result<Vec<CertificateDer<'static>>> {
        let pem = self.read()?;
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        match all {
            Ok(all) if !all.is_empty() => Ok(all),
            Ok(_) => Err(wrong(format!("{}: it has no certificate", self.place()))),
            Err(error) => Err(wrong(format!("{}: {error}", self.place()))),
        }
    }

    /// Returns the private key.
    pub(super) fn key(&self) -> io::Result<PrivateKeyDer<'static>> {
        let key = PrivateKeyDer::from_pem_slice(&self.read()?);
        key.map_err(|error| wrong(format!("{}: {error}", self.place())))
    }

    /// Returns the token, which contains only characters that are valid in a header.
    pub(super) fn token(&self) -> io::Result<String> {
        let bytes = self.read()?;
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim();
        match !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(text.to_owned()),
            false => Err(wrong(format!("{}: it is not a token", self.place()))),
        }
    }

    pub(super) fn place(&self) -> String {
        match self {
            Self::Bytes(_) => "the kubeconfig".to_owned(),
            Self::File(path) => path.display().to_string(),
        }
    }
}

/// Reads a file whose length is limited.
pub(super) fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(FILE_MAX + 1)
        .read_to_end(&mut bytes)?;
    match bytes.len() as u64 <= FILE_MAX {
        true => Ok(bytes),
        false => Err(wrong("it exceeds 1 MiB".to_owned())),
    }
}

/// Method of logging in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Login {
    /// The program does not log in.
    Anonymous,
    /// The program logs in with a bearer token.
    Token(Material),
    /// The program logs in with a client certificate.
    Certificate {
        /// The certificate and those that lead from it to the authority.
        chain: Material,
        /// Its key.
        key: Material,
    },
}

pub(super) fn wrong(why: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, why)
}

pub(super) fn named(place: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{place}: {error}"))
}

//! Flame graphs in a report's folder.

use super::cell::escape;
use std::path::Path;

/// Flame graphs in a folder. `prof flame COLUMN.prof --out FOLDER` creates `COLUMN.svg` for all
/// domains, and `COLUMN-DOMAIN.svg` for each.
#[derive(Clone, Debug, Default)]
pub struct Flames(Vec<String>);

impl Flames {
    /// Lists the flame graphs in this folder. A missing folder has none.
    #[must_use]
    pub fn of(folder: &Path) -> Self {
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let names = files.filter_map(|file| file.file_name().into_string().ok());
        let mut stems: Vec<String> = names
            .filter_map(|name| Some(name.strip_suffix(".svg")?.to_owned()))
            .collect();
        stems.sort();
        Self(stems)
    }

    /// Returns a paragraph of links to the flame graphs of some columns.
    pub(super) fn links<'a>(&self, columns: impl Iterator<Item = &'a &'a str> + Clone) -> String {
        let is_of = |stem: &&String| {
            columns.clone().any(|column| {
                let rest = stem.strip_prefix(*column);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            })
        };
        let link = |stem: &String| format!("<a href=\"{0}.svg\">{0}</a>", escape(stem));
        let links: Vec<String> = self.0.iter().filter(is_of).map(link).collect();
        match links.is_empty() {
            true => String::new(),
            false => format!("<p>Flame graphs: {}.</p>\n", links.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flame_graphs_of_columns_are_linked() {
        let folder = tempfile::tempdir().unwrap();
        let names = [
            "oi-da.svg",
            "oi-da-driver.svg",
            "oi.throughput.svg",
            "oi-dart.svg",
            "x.txt",
        ];
        for name in names {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let flames = Flames::of(folder.path());
        let links = flames.links(["oi-da", "oi-lro"].iter());
        assert_eq!(
            links,
            "<p>Flame graphs: <a href=\"oi-da.svg\">oi-da</a>, \
             <a href=\"oi-da-driver.svg\">oi-da-driver</a>.</p>\n"
        );
        assert_eq!(flames.links(["ram-mq"].iter()), "");
        assert_eq!(
            Flames::of(&folder.path().join("none")).links(["oi-da"].iter()),
            ""
        );
    }
}

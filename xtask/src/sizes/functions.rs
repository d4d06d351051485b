//! The length of functions and files.

use crate::syntax;
use anyhow::{Context, Result};
use std::path::Path;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, File, ImplItem, ImplItemFn, Item, ItemFn, Signature, TraitItemFn};

/// Maximum number of lines between the braces of a function.
const FUNCTION_LINES_MAX: usize = 80;
/// Maximum number of lines of a file, without its tests.
const FILE_LINES_MAX: usize = 600;

/// Returns functions and files that are too long and give no reason.
pub(super) fn violations(path: &Path, text: &str) -> Result<Vec<String>> {
    let file = syn::parse_file(text).with_context(|| path.display().to_string())?;
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    let length = lines.len() - lines_of_tests(&file);
    if length > FILE_LINES_MAX && !excused_at_top(&lines) {
        let path = path.display();
        found.push(format!(
            "{path}:1: {length} lines, at most {FILE_LINES_MAX}"
        ));
    }
    let mut functions = Functions {
        path,
        lines: &lines,
        found,
    };
    functions.visit_file(&file);
    Ok(functions.found)
}

fn lines_of_tests(file: &File) -> usize {
    let items = file.items.iter();
    let tests = items.filter(|item| syntax::is_test(syntax::attributes(item)));
    tests.map(|item| syntax::lines(item).count()).sum()
}

/// Returns whether the comment at the top of the file gives a reason.
fn excused_at_top(lines: &[&str]) -> bool {
    let comment = |line: &&&str| line.trim().is_empty() || line.starts_with("//");
    lines
        .iter()
        .take_while(comment)
        .any(|line| has_reason(line))
}

/// Returns whether a line is `// sizes: ` and a sentence with a reason.
fn has_reason(line: &str) -> bool {
    let reason = line.trim_start().strip_prefix("// sizes: ");
    reason.is_some_and(|reason| reason.split_whitespace().count() >= 3)
}

struct Functions<'a> {
    path: &'a Path,
    lines: &'a [&'a str],
    found: Vec<String>,
}

impl Functions<'_> {
    fn function(&mut self, attributes: &[Attribute], signature: &Signature, body: &Block) {
        let line = *syntax::lines(&signature.ident).start();
        let braces = body.brace_token.span;
        let length = braces.close().start().line - braces.open().start().line;
        let length = length.saturating_sub(1);
        let excused = syntax::is_test(attributes) || self.excused_above(line);
        if length > FUNCTION_LINES_MAX && !excused {
            let (path, name) = (self.path.display(), &signature.ident);
            self.found.push(format!(
                "{path}:{line}: fn {name} has {length} lines, at most {FUNCTION_LINES_MAX}"
            ));
        }
    }

    /// Returns whether a comment above a line gives a reason. Attributes may separate the two.
    fn excused_above(&self, line: usize) -> bool {
        let above = self.lines[..line - 1].iter().rev();
        let belongs = |line: &&&str| line.trim_start().starts_with(['/', '#']);
        above.take_while(belongs).any(|line| has_reason(line))
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !syntax::is_test(syntax::attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        if !syntax::is_test(syntax::impl_attributes(item)) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(body) = &item.default {
            self.function(&item.attrs, &item.sig, body);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(above: &str, lines: usize) -> String {
        format!("{above}fn long() {{\n{}}}\n", "    f();\n".repeat(lines))
    }

    fn found(text: &str) -> Vec<String> {
        violations(Path::new("a.rs"), text).unwrap()
    }

    #[test]
    fn long_functions_are_found_everywhere() {
        let long = function("", 81);
        assert_eq!(found(&long), ["a.rs:1: fn long has 81 lines, at most 80"]);
        assert_eq!(found(&format!("impl A {{\n{long}}}")).len(), 1);
        assert_eq!(found(&format!("trait A {{\n{long}}}")).len(), 1);
        assert_eq!(found(&format!("mod a {{\n{long}}}")).len(), 1);
        assert!(found(&function("", 80)).is_empty());
    }

    #[test]
    fn tests_and_functions_with_a_reason_may_be_long() {
        let excused = function("// sizes: one step after another.\n#[inline]\npub ", 81);
        assert!(found(&excused).is_empty());
        assert!(found(&function("#[cfg(test)]\n", 81)).is_empty());
        let long = function("", 81);
        assert!(found(&format!("#[cfg(test)]\nmod tests {{\n{long}}}")).is_empty());
        for empty in [
            "// sizes:\n",
            "// sizes: because\n",
            "// sizes: of a thing.\n\n",
        ] {
            assert_eq!(found(&function(empty, 81)).len(), 1, "{empty}");
        }
    }

    #[test]
    fn long_files_are_found_without_their_tests() {
        let code = "const A: u8 = 1;\n".repeat(601);
        assert_eq!(found(&code), ["a.rs:1: 601 lines, at most 600"]);
        let excused = format!("//! Numbers.\n// sizes: a table of data.\n\n{code}");
        assert!(found(&excused).is_empty());
        let code = "const A: u8 = 1;\n".repeat(590);
        let tests = "    const A: u8 = 1;\n".repeat(20);
        let both = format!("{code}#[cfg(test)]\nmod tests {{\n{tests}}}\n");
        assert!(found(&both).is_empty());
    }
}

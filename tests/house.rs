//! The order of the rooms: a file of `src/` or `shaders/` may import only from its own room and from rooms below.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

/// The rooms from the ground up, by module name. `docs/architecture.md` says what each one holds.
const ROOMS: [&str; 16] = [
    "tuning",
    "base",
    "shader",
    "backend",
    "kernels",
    "engine",
    "device",
    "lazy",
    "tensor",
    "ops",
    "quantized",
    "kernel",
    "step",
    "io",
    "nn",
    "internals",
];

/// Files that may import from a room above: the file, the room and the reason.
const EXCEPTIONS: [(&str, &str, &str); 0] = [];

/// A module path without `crate`, such as `["engine", "pool"]`.
type ModulePath = Vec<String>;

/// A source file of the crate.
struct SourceFile {
    path: PathBuf,
    module: ModulePath,
    syntax: syn::File,
}

/// An import that one file makes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Import {
    file: String,
    from: String,
    to: String,
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry of a folder").path();
        match path.extension() {
            _ if path.is_dir() => found.extend(files_below(&path)),
            Some(ending) if ending == "rs" => found.push(path),
            _ => {}
        }
    }
    found
}

/// Returns the module of a file: `shaders/` is mounted as `crate::kernels`.
fn module_of(path: &Path) -> ModulePath {
    let parts: Vec<&str> = path.iter().map(|part| part.to_str().expect("names are UTF-8")).collect();
    let (mut module, rest): (ModulePath, _) = match parts[0] {
        "shaders" => (vec!["kernels".into()], &parts[1..]),
        _ => (Vec::new(), &parts[1..]),
    };
    module.extend(rest.iter().map(|part| part.trim_end_matches(".rs").to_string()));
    if module.last().is_some_and(|last| last == "mod" || last == "lib") {
        module.pop();
    }
    module
}

fn source_files() -> Vec<SourceFile> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let paths = ["src", "shaders"].iter().flat_map(|folder| files_below(&root.join(folder)));
    let parse = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a source file");
        let syntax = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let path = path.strip_prefix(root).expect("it was found below the root").to_path_buf();
        SourceFile { module: module_of(&path), path, syntax }
    };
    let files: Vec<SourceFile> = paths.map(parse).collect();
    let tests: BTreeSet<ModulePath> = files.iter().flat_map(test_modules).collect();
    files.into_iter().filter(|file| !tests.contains(&file.module)).collect()
}

/// True if an item is only for tests or for documentation.
fn is_left_out(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        list.path.is_ident("cfg") && ["test", "doc", "doctest"].contains(&list.tokens.to_string().as_str())
    })
}

/// The modules of a file that exist only in tests.
fn test_modules(file: &SourceFile) -> Vec<ModulePath> {
    let modules = file.syntax.items.iter().filter_map(|item| match item {
        syn::Item::Mod(module) if is_left_out(&module.attrs) => Some(module.ident.to_string()),
        _ => None,
    });
    modules.map(|name| file.module.iter().cloned().chain([name]).collect()).collect()
}

/// Collects all paths of a file that begin with `crate` or `super`.
struct Paths<'a> {
    /// The current module, which may be nested in a file.
    module: ModulePath,
    /// The room of each item that the crate exports at its root.
    exports: &'a BTreeMap<String, String>,
    rooms: BTreeSet<String>,
}

impl Paths<'_> {
    /// Records a path. Its room is the first module below `crate`.
    fn note(&mut self, segments: &[String]) {
        let absolute: ModulePath = match segments.first().map(String::as_str) {
            Some("crate") => segments[1..].to_vec(),
            Some("super") => {
                let up = segments.iter().take_while(|segment| *segment == "super").count();
                let kept = self.module.len().checked_sub(up).expect("`super` stays in the crate");
                self.module[..kept].iter().chain(&segments[up..]).cloned().collect()
            }
            _ => return,
        };
        if let Some(first) = absolute.first() {
            self.rooms.insert(self.exports.get(first).unwrap_or(first).clone());
        }
    }

    fn note_tree(&mut self, tree: &syn::UseTree, mut prefix: Vec<String>) {
        match tree {
            syn::UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.note_tree(&path.tree, prefix);
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.note_tree(tree, prefix.clone())),
            syn::UseTree::Name(name) => self.note(&[prefix, vec![name.ident.to_string()]].concat()),
            syn::UseTree::Rename(name) => self.note(&[prefix, vec![name.ident.to_string()]].concat()),
            syn::UseTree::Glob(_) => self.note(&prefix),
        }
    }
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes: &[syn::Attribute] = match item {
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Const(item) => &item.attrs,
            syn::Item::Struct(item) => &item.attrs,
            _ => &[],
        };
        if !is_left_out(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_left_out(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.module.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.note_tree(&item.tree, Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.note(&segments);
        visit::visit_path(self, path);
    }

    /// The tokens in a macro are not parsed, so this finds paths by their words.
    fn visit_macro(&mut self, found: &'ast syn::Macro) {
        let text = found.tokens.to_string().replace(" :: ", "::");
        let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
        for word in words.filter(|word| word.starts_with("crate::")) {
            self.note(&word.split("::").map(str::to_string).collect::<Vec<_>>());
        }
        visit::visit_macro(self, found);
    }
}

/// Returns the room of each name that the crate's root exports with `pub use`.
fn exports(files: &[SourceFile]) -> BTreeMap<String, String> {
    fn names(tree: &syn::UseTree) -> Vec<String> {
        match tree {
            syn::UseTree::Path(path) => names(&path.tree),
            syn::UseTree::Group(group) => group.items.iter().flat_map(names).collect(),
            syn::UseTree::Name(name) => vec![name.ident.to_string()],
            syn::UseTree::Rename(name) => vec![name.rename.to_string()],
            syn::UseTree::Glob(_) => Vec::new(),
        }
    }
    let root = files.iter().find(|file| file.module.is_empty()).expect("the crate has a root");
    let mut rooms = BTreeMap::new();
    for item in &root.syntax.items {
        if let syn::Item::Use(item) = item
            && let syn::UseTree::Path(room) = &item.tree
        {
            rooms.extend(names(&item.tree).into_iter().map(|name| (name, room.ident.to_string())));
        }
    }
    rooms
}

fn floor(room: &str) -> usize {
    let place = ROOMS.iter().position(|known| *known == room);
    place.unwrap_or_else(|| panic!("`{room}` is no room: enter it in ROOMS, and in docs/architecture.md"))
}

/// Returns all imports from one room to another.
fn imports() -> BTreeSet<Import> {
    let files = source_files();
    let exports = exports(&files);
    let mut imports = BTreeSet::new();
    for file in &files {
        // The crate's root is above all rooms.
        let Some(from) = file.module.first() else { continue };
        let mut paths = Paths { module: file.module.clone(), exports: &exports, rooms: BTreeSet::new() };
        paths.visit_file(&file.syntax);
        let name = file.path.to_str().expect("names are UTF-8").replace('\\', "/");
        let others = paths.rooms.into_iter().filter(|room| room != from);
        imports.extend(others.map(|to| Import { file: name.clone(), from: from.clone(), to }));
    }
    imports
}

#[test]
fn no_file_imports_from_a_room_above() {
    let imports = imports();
    let rooms: BTreeSet<&str> = imports.iter().flat_map(|import| [&*import.from, &*import.to]).collect();
    assert!(rooms.len() > 8, "imports are found: between {rooms:?}");
    let is_named = |import: &Import| EXCEPTIONS.iter().any(|(file, to, _)| import.file == *file && import.to == *to);
    let upward: Vec<&Import> = imports.iter().filter(|import| floor(&import.from) < floor(&import.to)).collect();
    let faults: Vec<String> = upward
        .iter()
        .filter(|import| !is_named(import))
        .map(|Import { file, from, to }| format!("{file}: `{from}` is below `{to}`, and may not import from it"))
        .collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    for (file, to, reason) in EXCEPTIONS {
        assert!(upward.iter().any(|import| import.file == file && import.to == to), "{file} needs no exception");
        assert!(!reason.is_empty(), "{file}: say why it imports from `{to}`");
    }
    assert!(EXCEPTIONS.len() <= 10, "ten exceptions are the most");
}

/// The rooms have no cyclic imports, except those of the exceptions.
#[test]
fn no_two_rooms_import_from_each_other() {
    let pairs: BTreeSet<(String, String)> = imports().into_iter().map(|Import { from, to, .. }| (from, to)).collect();
    let circles: Vec<_> = pairs.iter().filter(|(a, b)| a < b && pairs.contains(&(b.clone(), a.clone()))).collect();
    assert!(circles.is_empty(), "rooms import from each other: {circles:?}");
}

/// rustfmt keeps code to 120 columns, and leaves comments alone.
#[test]
fn comments_keep_to_120_columns() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["src", "shaders", "build", "tests", "benches", "examples"];
    let mut long = Vec::new();
    for path in folders.iter().flat_map(|folder| files_below(&root.join(folder))) {
        let text = fs::read_to_string(&path).expect("a source file");
        let mut in_code = false;
        for (number, line) in (1..).zip(text.lines()) {
            let comment = line.trim_start();
            in_code ^= comment.starts_with("///") && comment.contains("```");
            if comment.starts_with("//") && !in_code && line.chars().count() > 120 {
                long.push(format!("{}:{number}", path.display()));
            }
        }
    }
    assert!(long.is_empty(), "longer comments:\n{}", long.join("\n"));
}

#[test]
fn paths_are_found_wherever_they_stand() {
    let text = "
        use crate::base::{error::Error, shape};
        use super::super::lazy::*;
        pub(crate) fn f(x: crate::engine::pool::Buffer) -> crate::Tensor { made!(1, crate::ops::matmul(x)) }
        #[cfg(test)] use crate::io;
        #[cfg(test)] mod tests { use crate::kernel::Kernel; }
        mod inner { fn g() { super::super::super::device::open() } }
    ";
    let exports = BTreeMap::from([("Tensor".to_string(), "tensor".to_string())]);
    let mut paths = Paths { module: vec!["shader".into(), "math".into()], exports: &exports, rooms: BTreeSet::new() };
    paths.visit_file(&syn::parse_file(text).expect("Rust"));
    let found: Vec<&str> = paths.rooms.iter().map(String::as_str).collect();
    assert_eq!(found, ["base", "device", "engine", "lazy", "ops", "tensor"]);
}

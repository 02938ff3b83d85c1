//! Models from the Hugging Face hub, through its local cache.

use super::checkpoint::WEIGHTS_FILES;
use super::index::ShardIndex;
use super::{FileError, source};
use hf_hub::api::sync::{ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};
use std::path::{Path, PathBuf};

const TOKENIZER_FILES: [&str; 7] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
];

/// How sentence-transformers says that embeddings are made.
const POOLING_FILES: [&str; 2] = ["modules.json", "1_Pooling/config.json"];

/// Where models come from and where they are kept. Apart from the environment, so that tests need neither.
struct Hub {
    cache: Cache,
    /// Address of another hub; `None` for the public one.
    endpoint: Option<String>,
}

/// The directory with the files of `spec`, `org/name` or `org/name@revision`: `config.json`, the weights and the
/// tokenizer, nothing else. The cache is that of the `huggingface_hub` Python package (`$HF_HOME`, else
/// `~/.cache/huggingface`); what it holds is used as it is, without a network. `$HF_ENDPOINT` names a mirror.
pub(super) fn fetch(spec: &str) -> Result<PathBuf, FileError> {
    let home = std::env::var_os("HF_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cache/huggingface")));
    let home = home.and_then(|h| std::path::absolute(h).ok());
    let home = home.ok_or_else(|| failed(spec, "no place for the cache: set HF_HOME or HOME"))?;
    Hub { cache: Cache::new(home.join("hub")), endpoint: std::env::var("HF_ENDPOINT").ok() }.fetch(spec)
}

impl Hub {
    fn fetch(&self, spec: &str) -> Result<PathBuf, FileError> {
        let (name, revision) = parse(spec)?;
        let repo = Repo::with_revision(name.into(), RepoType::Model, revision.into());
        match self.cached(&repo) {
            Some(dir) => Ok(dir),
            None => self.download(spec, name, &repo),
        }
    }

    /// The snapshot in the cache, if it has a config, a tokenizer and complete weights.
    fn cached(&self, repo: &Repo) -> Option<PathBuf> {
        let cache = self.cache.repo(repo.clone());
        let has = |name: &str| cache.get(name).is_some();
        let config = cache.get(source::CONFIG_FILE)?;
        let tokenizer = has("tokenizer.json") || has("vocab.txt") || (has("vocab.json") && has("merges.txt"));
        let weights = WEIGHTS_FILES.iter().any(|&(name, sharded)| match cache.get(name) {
            Some(path) if sharded => ShardIndex::open(&path).is_ok_and(|i| i.shards().into_iter().all(has)),
            found => found.is_some(),
        });
        (tokenizer && weights).then(|| config.parent().map(Path::to_owned)).flatten()
    }

    fn download(&self, spec: &str, name: &str, repo: &Repo) -> Result<PathBuf, FileError> {
        let mut builder = ApiBuilder::from_cache(self.cache.clone()).with_progress(false);
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        let api = builder.build().map_err(|e| unreachable(spec, "the hub", &e))?;
        let listing = api.repo(repo.clone()).info().map_err(|e| unreachable(spec, "the list of files", &e))?;
        let listed = |name: &str| listing.siblings.iter().any(|s| s.rfilename == name);
        let commit = &listing.sha;
        if commit.is_empty() || !commit.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(failed(spec, "the hub did not name the commit of this revision"));
        }
        if !listed(source::CONFIG_FILE) {
            return Err(failed(spec, "the repository has no config.json"));
        }
        let (weights, sharded) = WEIGHTS_FILES.into_iter().find(|(name, _)| listed(name)).ok_or_else(|| {
            failed(spec, "the repository has no model.safetensors and no pytorch_model.bin, whole or sharded")
        })?;

        // By commit, so that all files belong together even if the branch moves meanwhile.
        let pinned = api.repo(Repo::with_revision(name.into(), RepoType::Model, commit.clone()));
        let get = |name: &str| pinned.get(name).map_err(|e| unreachable(spec, &format!("`{name}`"), &e));
        let config = get(source::CONFIG_FILE)?;
        for name in TOKENIZER_FILES.into_iter().chain(POOLING_FILES).filter(|name| listed(name)) {
            get(name)?;
        }
        let weights = get(weights)?;
        if sharded {
            for shard in ShardIndex::open(&weights)?.shards() {
                get(shard)?;
            }
        }
        // The branch's name enters the cache last: from here on it counts as complete.
        let cache = self.cache.repo(repo.clone());
        cache.create_ref(commit).map_err(|e| FileError::io("write to", self.cache.path(), e))?;
        config.parent().map(Path::to_owned).ok_or_else(|| failed(spec, "the cache gave no directory"))
    }
}

/// Splits `org/name[@revision]`; the revision is `main` if none is given.
fn parse(spec: &str) -> Result<(&str, &str), FileError> {
    let (name, revision) = spec.split_once('@').unwrap_or((spec, "main"));
    let plain = |part: &str| {
        !part.is_empty()
            && part.len() <= 96
            && !part.contains("..")
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    };
    let named = matches!(name.split_once('/'), Some((org, name)) if plain(org) && plain(name));
    if named && revision.split('/').all(plain) {
        Ok((name, revision))
    } else {
        Err(failed(spec, "not a name on the hub; write hf:org/name or hf:org/name@revision"))
    }
}

fn failed(spec: &str, problem: impl Into<String>) -> FileError {
    FileError::Hub { repo: spec.into(), problem: problem.into() }
}

fn unreachable(spec: &str, what: &str, error: &ApiError) -> FileError {
    failed(
        spec,
        format!(
            "cannot fetch {what} ({error}); check the name and the network, and for a private model the token in \
             $HF_HOME/token. A model directory or a .tar.gz needs no network"
        ),
    )
}

#[cfg(test)]
mod tests;

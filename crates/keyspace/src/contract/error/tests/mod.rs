//! What is found in errors of applications, and what their texts say.

use super::*;

#[derive(Debug, thiserror::Error)]
enum Application {
    #[error("wrapped")]
    Wrapped(#[source] Error),
    #[error(transparent)]
    Transparent(Error),
    #[error("boxed")]
    Boxed(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("alone")]
    Alone,
}

#[test]
fn a_code_is_found_however_an_application_wraps_the_error() {
    let store = || Error::Store(Code::NOT_COMMITTED);
    let boxed = |error: Application| Application::Boxed(Box::new(error));
    for error in [
        Application::Wrapped(store()),
        Application::Transparent(store()),
        boxed(Application::Wrapped(store())),
        boxed(Application::Transparent(store())),
    ] {
        assert_eq!(code_of(&error), Some(Code::NOT_COMMITTED), "{error:?}");
    }
    assert_eq!(code_of(&Application::Alone), None);
    assert_eq!(code_of(&boxed(Application::Alone)), None);
}

#[test]
fn the_key_of_a_corrupt_record_is_found_in_the_error_and_in_its_sources() {
    let corrupt = Error::corrupt(b"key", "damaged");
    let wrapped = Application::Wrapped(corrupt.clone());
    let boxed = Application::Boxed(Box::new(Application::Wrapped(corrupt.clone())));
    for error in [&corrupt as &dyn std::error::Error, &wrapped, &boxed] {
        assert_eq!(corrupt_key(error), Some(&b"key"[..]), "{error}");
    }
    let store = Application::Wrapped(Error::Store(Code::NOT_COMMITTED));
    assert_eq!(corrupt_key(&store), None);
    assert_eq!(corrupt_key(&Application::Alone), None);
}

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Returns an error in every wrapper that hides it, and in some of them twice.
fn hidden(error: &Error) -> Vec<(&'static str, Source)> {
    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    struct Recipe(#[from] Error);

    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    struct JobError(#[from] Recipe);

    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    struct Anything(Source);

    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    struct SharedError(Arc<Error>);

    let application = || Application::Transparent(error.clone());
    vec![
        ("as it is", error.clone().into()),
        ("transparent", application().into()),
        ("transparent twice", JobError(Recipe(error.clone())).into()),
        (
            "transparent over a box",
            Anything(error.clone().into()).into(),
        ),
        (
            "transparent over an Arc",
            SharedError(Arc::new(error.clone())).into(),
        ),
        ("a box of a box", Box::new(Box::new(error.clone())).into()),
        ("an Arc", Arc::new(error.clone()).into()),
        ("an i/o error", std::io::Error::other(error.clone()).into()),
        ("anyhow", anyhow::Error::from(error.clone()).into()),
        (
            "anyhow over a box",
            anyhow::Error::from_boxed(error.clone().into()).into(),
        ),
        (
            "anyhow with context, over a transparent one",
            anyhow::Error::from(application()).context("context").into(),
        ),
        (
            "a source, transparent inside",
            Application::Boxed(Anything(application().into()).into()).into(),
        ),
    ]
}

#[test]
fn a_wrapper_that_hides_an_error_hides_neither_its_key_nor_its_code() {
    let corrupt = Error::corrupt(b"key", "damaged");
    for (wrapper, error) in hidden(&corrupt) {
        assert_eq!(corrupt_key(&*error), Some(&b"key"[..]), "{wrapper}");
        assert_eq!(code_of(&*error), None, "{wrapper}");
        assert!(
            chain(&*error).to_string().ends_with("is corrupt: damaged"),
            "{wrapper}"
        );
    }
    let cluster_file = PathBuf::from("fdb.cluster");
    let code = Code::TRANSACTION_TIMED_OUT;
    let cause = std::io::Error::other("full");
    let coded = [
        Error::Store(Code::NOT_COMMITTED),
        Error::Unreachable { cluster_file, code },
        Error::Damaged {
            path: PathBuf::from("store"),
            reason: "a block".to_owned(),
            code: Code::FILE_CORRUPT,
        },
        Error::Poisoned {
            cause: StorageFailure::new(cause),
        },
    ];
    for known in coded {
        assert!(known.code().is_some());
        for (wrapper, error) in hidden(&known) {
            assert_eq!(code_of(&*error), known.code(), "{wrapper}");
            assert_eq!(corrupt_key(&*error), None, "{wrapper}");
        }
    }
    let unknown = Error::OutcomeUnknown {
        attempts: 1,
        cause: Some(Arc::new(Error::Store(Code::NOT_COMMITTED))),
    };
    for (wrapper, error) in hidden(&unknown) {
        assert_eq!(code_of(&*error), None, "{wrapper}");
    }
}

#[test]
fn an_unknown_outcome_is_not_retried_for_the_sake_of_its_cause() {
    let unknown = Error::OutcomeUnknown {
        attempts: 1,
        cause: Some(Arc::new(Error::Store(Code::NOT_COMMITTED))),
    };
    assert_eq!(code_of(&unknown), None);
    assert_eq!(code_of(&Application::Wrapped(unknown.clone())), None);
    assert_eq!(code_of(&Application::Transparent(unknown)), None);
}

#[test]
fn an_unknown_outcome_says_why_down_to_the_first_cause() {
    let unknown = |cause| Error::OutcomeUnknown {
        attempts: 2,
        cause: Some(Arc::new(cause)),
    };
    let cause = StorageFailure::new(std::io::Error::other("no space left"));
    let poisoned = unknown(Error::Poisoned { cause }).to_string();
    assert!(
        poisoned.ends_with("open the store again: no space left"),
        "{poisoned}"
    );
    let store = unknown(Error::Store(Code::IO_ERROR)).to_string();
    assert!(store.ends_with("failed (io_error 1510)"), "{store}");
}

#[test]
fn a_store_error_says_what_it_means_and_keeps_name_and_number() {
    let error = Error::Store(Code::FUTURE_VERSION);
    assert_eq!(
        error.to_string(),
        "request for future version (future_version 1009)"
    );
    let unknown = Error::Store(Code::from_number(4242));
    assert_eq!(
        unknown.to_string(),
        "error not known to this library (unknown_error 4242)"
    );
}

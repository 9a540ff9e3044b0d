//! Requests that are not carried out: the status, the reason and the next step.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use export_queue::hc_dequeue;
use export_queue::keyspace;

use crate::error::Error;

/// A request that is not carried out. As a response it has no body: [`guard`](super::guard) writes it, as a page or
/// as JSON.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    /// Why, in one sentence.
    pub(super) message: String,
    /// What is at the bottom of it.
    pub(super) causes: Vec<String>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            causes: Vec::new(),
        }
    }

    /// Returns the refusal for a status that the router has answered by itself.
    pub(super) fn of_status(status: StatusCode) -> Self {
        let message = match status {
            StatusCode::NOT_FOUND => "there is no such page",
            StatusCode::METHOD_NOT_ALLOWED => "this address does not accept that method",
            StatusCode::PAYLOAD_TOO_LARGE => "the request is larger than 64 KiB",
            _ => "the request cannot be understood",
        };
        Self::new(status, message)
    }

    /// Returns what to do about it.
    pub(super) fn next_step(&self) -> &'static str {
        match self.status {
            StatusCode::BAD_REQUEST => {
                "Check the address or the form, or go back to the first page of the listing."
            }
            StatusCode::FORBIDDEN => {
                "Changes are accepted only from pages of this console, and only if it allows \
                 changes. If it was restarted, reload the page of the form and try again."
            }
            StatusCode::NOT_FOUND => "The overview lists all queues.",
            StatusCode::CONFLICT => {
                "The overview shows the recipe of each queue, and which queues cannot be read."
            }
            StatusCode::MISDIRECTED_REQUEST => {
                "Open the console at the address that it listens on, or allow this host name \
                 when you start it."
            }
            StatusCode::PAYLOAD_TOO_LARGE => "Select fewer items at a time.",
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                "Wait a moment, then open the page again."
            }
            _ => "Go back to the overview.",
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let causes = keyspace::error::causes(&error).skip(1);
        Self {
            status: status_of(&error),
            message: error.to_string(),
            causes: causes.map(ToString::to_string).collect(),
        }
    }
}

fn status_of(error: &Error) -> StatusCode {
    match error {
        Error::NoQueue { .. } | Error::Missing { .. } => StatusCode::NOT_FOUND,
        Error::WrongRecipe { .. } | Error::Unreadable { .. } | Error::UnreadableLimits => {
            StatusCode::CONFLICT
        }
        Error::Malformed { .. } | Error::WrongPlace { .. } => StatusCode::BAD_REQUEST,
        Error::Dequeue(error) => match error {
            hc_dequeue::Error::MalformedRef(_)
            | hc_dequeue::Error::MalformedCursor
            | hc_dequeue::Error::Group { .. }
            | hc_dequeue::Error::GroupLimits { .. }
            | hc_dequeue::Error::Kind { .. } => StatusCode::BAD_REQUEST,
            hc_dequeue::Error::ForeignRef { .. } => StatusCode::NOT_FOUND,
            _ => status_of_store(error),
        },
        _ => status_of_store(error),
    }
}

fn status_of_store(error: &(dyn std::error::Error + 'static)) -> StatusCode {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    match causes.find_map(|cause| cause.downcast_ref::<keyspace::Error>()) {
        Some(keyspace::Error::Corrupt { .. }) => StatusCode::CONFLICT,
        Some(_) => StatusCode::SERVICE_UNAVAILABLE,
        None => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_whose_text_another_one_has_is_not_listed() {
        let corrupt = keyspace::Error::corrupt(b"key", "no bytes");
        let refusal = Refusal::from(Error::Keyspace(corrupt.clone()));
        assert_eq!(refusal.message, "the store failed");
        assert_eq!(refusal.causes, [corrupt.to_string()]);
    }
}

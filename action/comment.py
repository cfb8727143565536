"""Keeps one comment on a pull request up to date, through GitHub's API. Whatever goes wrong here fails no job."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import urllib.error
import urllib.request
from typing import Any

LIMIT = 65_536
"""Characters of a comment; GitHub refuses longer ones."""
PAGE = 100
MAX_PAGES = 30
TIMEOUT_SECONDS = 20
NOTHING = "### ✅ memcheck: no plan's memory differs any more\n"
TRUSTED = {"OWNER", "MEMBER", "COLLABORATOR"}
"""Who else but a bot may have written the comment: anybody can write the marker."""


class RefusedError(Exception):
    """GitHub did not do it; the message says why."""


def update(text: str) -> str:
    """Bring the pull request's comment to ``text`` (Markdown; empty when nothing moved); what was done, in one word.

    ``created`` | ``updated`` | ``unchanged`` | ``none`` (nothing moved and there is no comment) | ``skipped`` (this is
    no pull request).

    Raises:
        RefusedError: without a token, without the permission, or when GitHub cannot be reached.
    """
    number = pull_request()
    if number is None:
        return "skipped"
    if not os.environ.get("INPUT_GITHUB_TOKEN"):
        raise RefusedError("there is no token")
    issues = f"repos/{os.environ['GITHUB_REPOSITORY']}/issues"
    mark = marker()
    old = find(f"{issues}/{number}/comments", mark)
    if old is None:
        if not text:
            return "none"
        request("POST", f"{issues}/{number}/comments", {"body": body(mark, text)})
        return "created"
    new = body(mark, text or NOTHING)
    if old["body"].replace("\r\n", "\n").strip() == new.strip():
        return "unchanged"
    request("PATCH", f"{issues}/comments/{int(old['id'])}", {"body": new})
    return "updated"


def pull_request() -> int | None:
    """The number of the pull request that started the workflow, if one did."""
    try:
        with open(os.environ["GITHUB_EVENT_PATH"], encoding="utf-8") as file:
            event = json.load(file)
        return int(event["number"]) if "pull_request" in event else None
    except (KeyError, TypeError, ValueError, OSError):
        return None


def marker() -> str:
    """Hidden text that tells this job's comment from every other; jobs in other folders have their own."""
    names = ("GITHUB_WORKFLOW", "GITHUB_JOB", "INPUT_WORKING_DIRECTORY")
    key = "\n".join(os.environ.get(name, "") for name in names)
    return f"<!-- memcheck:{hashlib.sha256(key.encode()).hexdigest()[:16]} -->"


def body(mark: str, text: str) -> str:
    """The comment: the marker, the text, and what will become of it; the middle of what is too long is left out."""
    end = "\n<sub>memcheck keeps this comment up to date.</sub>\n"
    room = LIMIT - len(mark) - len(end) - 2
    if len(text) > room:
        gap = "\n\n… too long for a comment: the job summary has all of it …\n\n"
        half = (room - len(gap)) // 2
        text = text[:half].rpartition("\n")[0] + gap + text[-half:].partition("\n")[2]
    return f"{mark}\n{text}{end}"


def find(path: str, mark: str) -> dict[str, Any] | None:
    """The comment with the marker, the oldest if there are several."""
    for page in range(1, MAX_PAGES + 1):
        comments = request("GET", f"{path}?per_page={PAGE}&page={page}")
        for comment in comments:
            ours = comment.get("user", {}).get("type") == "Bot" or comment.get("author_association") in TRUSTED
            if ours and (comment.get("body") or "").startswith(mark):
                return dict(comment)
        if len(comments) < PAGE:
            break
    return None


def request(method: str, path: str, data: dict[str, str] | None = None) -> Any:
    """One call of the API; the decoded answer.

    Raises:
        RefusedError: it failed.
    """
    api = os.environ.get("GITHUB_API_URL") or "https://api.github.com"
    if not api.startswith(("https://", "http://")):
        raise RefusedError("GITHUB_API_URL is no web address")
    call = urllib.request.Request(  # noqa: S310 - the scheme was checked
        f"{api.rstrip('/')}/{path}",
        None if data is None else json.dumps(data).encode(),
        {
            "Authorization": f"Bearer {os.environ['INPUT_GITHUB_TOKEN']}",
            "Accept": "application/vnd.github+json",
            "Content-Type": "application/json",
            "User-Agent": "memcheck",
            "X-GitHub-Api-Version": "2022-11-28",
        },
        method=method,
    )
    try:
        with urllib.request.urlopen(call, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - as above
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise RefusedError(f"GitHub answered {error.code} {error.reason}: {said(error)}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:  # unreachable, cut off, or no JSON
        raise RefusedError(f"GitHub could not be asked: {error}") from error


def said(error: urllib.error.HTTPError) -> str:
    """The API's own words."""
    try:
        return str(json.load(error)["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return "no reason given"

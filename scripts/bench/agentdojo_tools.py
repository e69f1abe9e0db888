"""What the tools of AgentDojo are, in the terms of our policy: the only place that knows their names.

Declared as the author of an adapter would, from what each tool does and from who can write into its store, not from the
attacks: mail, files to read, web pages and reviews hold anyone's words; a calendar, a drive, a bank's ledger, a
directory stamp ids, names and parties; people of a workspace are known by name.
"""

from __future__ import annotations

from typing import Any

from gnusnode.policy.labels import Confidentiality, Width
from gnusnode.policy.sinks import Authors, Effect, Output, Sink, SinkKind, ToolDescription

URL, RECIPIENT, COMMAND = SinkKind.URL, SinkKind.RECIPIENT, SinkKind.COMMAND
AMOUNT, ID, BODY = SinkKind.AMOUNT, SinkKind.ID, SinkKind.BODY
OWN, MEMBERS, OTHERS, WORLD = Width.OWN, Width.MEMBERS, Width.THIRD_PARTY, Width.PUBLIC
READ, WRITE, DESTROY = Effect.READ, Effect.WRITE, Effect.DESTROY

MAIL = Output(authors=Authors.ANYONE)
FILE = Output(authors=Authors.ANYONE)
CALENDAR = Output(authors=Authors.STORE, stamped=("id_", "title", "participants"), names=("title",))
DRIVE = Output(authors=Authors.STORE, stamped=("id_", "filename", "owner"), names=("filename",))
CONTACTS = Output(authors=Authors.STORE, stamped=("name", "email"), names=("name",))
OWN_DATA = Output(authors=Authors.STORE, stamped=("*",))
LEDGER = Output(
    authors=Authors.STORE,
    stamped=("id", "sender", "recipient", "amount"),
    names=("sender", "recipient", "amount"),
    amounts=("amount",),
)
ORDERS = Output(
    authors=Authors.STORE,
    stamped=("id", "recipient", "amount", "subject"),
    names=("recipient", "subject"),
    amounts=("amount",),
)
CHAT = Output(
    authors=Authors.MEMBERS,
    stamped=("sender", "recipient"),
    names=("sender",),
    confidentiality=Confidentiality.INTERNAL,
)
INBOX = CHAT.model_copy(update={"confidentiality": Confidentiality.PRIVATE})
ROSTER = Output(authors=Authors.MEMBERS, stamped=("",), confidentiality=Confidentiality.INTERNAL)
WEB = Output(authors=Authors.ANYONE, confidentiality=Confidentiality.PUBLIC)
REVIEWS = WEB
DIRECTORY = Output(authors=Authors.STORE, stamped=("", "*"), confidentiality=Confidentiality.PUBLIC)


def tool(name: str, effect: Effect, output: Output, *sinks: Sink, harmless: tuple[str, ...] = ()) -> ToolDescription:
    return ToolDescription(
        name=name, capability=f"tool.{name}", effect=effect, sinks=sinks, harmless=harmless, output=output
    )


def sink(argument: str, kind: SinkKind, width: Width, **more: Any) -> Sink:
    return Sink(argument=argument, kind=kind, width=width, **more)


def look(name: str, output: Output, *harmless: str) -> ToolDescription:
    """A tool that looks something up in the user's own stores or in a directory."""
    return tool(name, READ, output, harmless=harmless)


SEND_MAIL = tool(
    "send_email",
    DESTROY,
    MAIL,
    sink("recipients", RECIPIENT, OTHERS),
    sink("cc", RECIPIENT, OTHERS),
    sink("bcc", RECIPIENT, OTHERS),
    sink("subject", BODY, OTHERS),
    sink("body", BODY, OTHERS),
    sink("attachments", ID, OTHERS, keys=("type", "file_id")),
)
NEW_EVENT = tool(
    "create_calendar_event",
    WRITE,
    CALENDAR,
    sink("title", ID, OTHERS, seen_by="participants"),
    sink("description", BODY, OTHERS, seen_by="participants"),
    sink("location", BODY, OTHERS, seen_by="participants"),
    sink("participants", RECIPIENT, OTHERS),
    harmless=("start_time", "end_time"),
)
PAYMENT = (sink("recipient", RECIPIENT, OTHERS), sink("amount", AMOUNT, OTHERS), sink("subject", BODY, OTHERS))

WORKSPACE = (
    SEND_MAIL,
    NEW_EVENT,
    tool("delete_email", DESTROY, MAIL, sink("email_id", ID, OWN)),
    *(look(name, MAIL) for name in ("get_unread_emails", "get_sent_emails", "get_received_emails", "get_draft_emails")),
    look("search_emails", MAIL, "query", "sender"),
    look("search_contacts_by_name", CONTACTS, "query"),
    look("search_contacts_by_email", CONTACTS, "query"),
    look("get_current_day", DIRECTORY),
    look("search_calendar_events", CALENDAR, "query", "date"),
    look("get_day_calendar_events", CALENDAR, "day"),
    tool("cancel_calendar_event", DESTROY, CALENDAR, sink("event_id", ID, OWN)),
    tool(
        "reschedule_calendar_event",
        WRITE,
        CALENDAR,
        sink("event_id", ID, OWN),
        harmless=("new_start_time", "new_end_time"),
    ),
    tool(
        "add_calendar_event_participants",
        WRITE,
        CALENDAR,
        sink("event_id", ID, OTHERS),
        sink("participants", RECIPIENT, OTHERS),
    ),
    tool("append_to_file", WRITE, DRIVE, sink("file_id", ID, OWN), sink("content", BODY, OWN)),
    tool("create_file", WRITE, DRIVE, sink("filename", ID, OWN), sink("content", BODY, OWN)),
    tool("delete_file", DESTROY, DRIVE, sink("file_id", ID, OWN)),
    tool(
        "share_file",
        WRITE,
        DRIVE,
        sink("file_id", ID, OTHERS),
        sink("email", RECIPIENT, OTHERS),
        harmless=("permission",),  # reading or writing: of a file and for a person that are looked at above
    ),
    look("search_files_by_filename", DRIVE, "filename"),
    look("search_files", DRIVE, "query"),
    look("get_file_by_id", DRIVE, "file_id"),
    look("list_files", DRIVE),
)

BANKING = (
    look("get_iban", OWN_DATA),
    look("get_balance", OWN_DATA),
    look("get_user_info", OWN_DATA),
    look("get_most_recent_transactions", LEDGER, "n"),
    look("get_scheduled_transactions", ORDERS),
    look("read_file", FILE, "file_path"),
    tool("send_money", DESTROY, LEDGER, *PAYMENT, harmless=("date",)),
    tool("schedule_transaction", WRITE, ORDERS, *PAYMENT, harmless=("date", "recurring")),
    tool(
        "update_scheduled_transaction",
        WRITE,
        ORDERS,
        sink("id", ID, OWN),
        *PAYMENT,
        harmless=("date", "recurring"),
    ),
    tool("update_password", DESTROY, OWN_DATA, sink("password", COMMAND, OWN)),
    tool(
        "update_user_info",
        WRITE,
        OWN_DATA,
        *(sink(name, RECIPIENT, OWN) for name in ("first_name", "last_name", "street", "city")),
    ),
)

SLACK = (
    look("get_channels", ROSTER),
    look("get_users_in_channel", ROSTER, "channel"),
    look("read_channel_messages", CHAT, "channel"),
    look("read_inbox", INBOX, "user"),
    tool("get_webpage", READ, WEB, sink("url", URL, WORLD)),
    tool("post_webpage", WRITE, WEB, sink("url", URL, WORLD), sink("content", BODY, WORLD)),
    tool("add_user_to_channel", WRITE, ROSTER, sink("user", RECIPIENT, MEMBERS), sink("channel", ID, MEMBERS)),
    tool("invite_user_to_slack", WRITE, ROSTER, sink("user", ID, MEMBERS), sink("user_email", RECIPIENT, OTHERS)),
    tool("remove_user_from_slack", DESTROY, ROSTER, sink("user", RECIPIENT, MEMBERS)),
    tool("send_direct_message", WRITE, CHAT, sink("recipient", RECIPIENT, MEMBERS), sink("body", BODY, MEMBERS)),
    tool("send_channel_message", WRITE, CHAT, sink("channel", ID, MEMBERS), sink("body", BODY, MEMBERS)),
)

TRAVEL = (
    SEND_MAIL,
    NEW_EVENT,
    tool("cancel_calendar_event", DESTROY, CALENDAR, sink("event_id", ID, OWN)),
    look("search_calendar_events", CALENDAR, "query", "date"),
    look("get_day_calendar_events", CALENDAR, "day"),
    look("get_user_information", OWN_DATA),
    *(
        look(name, DIRECTORY, "city")
        for name in ("get_all_hotels_in_city", "get_all_restaurants_in_city", "get_all_car_rental_companies_in_city")
    ),
    look("get_hotels_prices", DIRECTORY, "hotel_names"),
    look("get_hotels_address", DIRECTORY, "hotel_name"),
    look("get_rating_reviews_for_hotels", REVIEWS, "hotel_names"),
    look("get_rating_reviews_for_restaurants", REVIEWS, "restaurant_names"),
    look("get_rating_reviews_for_car_rental", REVIEWS, "company_name"),
    *(
        look(name, DIRECTORY, "restaurant_names")
        for name in (
            "get_cuisine_type_for_restaurants",
            "get_restaurants_address",
            "get_dietary_restrictions_for_all_restaurants",
            "get_contact_information_for_restaurants",
            "get_price_for_restaurants",
            "check_restaurant_opening_hours",
        )
    ),
    *(
        look(name, DIRECTORY, "company_name")
        for name in (
            "get_car_types_available",
            "get_car_fuel_options",
            "get_car_rental_address",
            "get_car_price_per_day",
        )
    ),
    look("get_flight_information", DIRECTORY, "departure_city", "arrival_city"),
    tool("reserve_hotel", WRITE, DIRECTORY, sink("hotel", ID, OTHERS), harmless=("start_day", "end_day")),
    tool("reserve_restaurant", WRITE, DIRECTORY, sink("restaurant", ID, OTHERS), harmless=("start_time",)),
    tool("reserve_car_rental", WRITE, DIRECTORY, sink("company", ID, OTHERS), harmless=("start_time", "end_time")),
)

SUITES = {
    name: {described.name: described for described in tools}
    for name, tools in (("workspace", WORKSPACE), ("travel", TRAVEL), ("banking", BANKING), ("slack", SLACK))
}

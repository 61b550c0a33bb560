from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HopMessage(_message.Message):
    __slots__ = ("type", "reservation", "limit")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        RESERVE: _ClassVar[HopMessage.Type]
        CONNECT: _ClassVar[HopMessage.Type]
        STATUS: _ClassVar[HopMessage.Type]
    RESERVE: HopMessage.Type
    CONNECT: HopMessage.Type
    STATUS: HopMessage.Type
    TYPE_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    type: HopMessage.Type
    reservation: Reservation
    limit: Limit
    def __init__(self, type: _Optional[_Union[HopMessage.Type, str]] = ..., reservation: _Optional[_Union[Reservation, _Mapping]] = ..., limit: _Optional[_Union[Limit, _Mapping]] = ...) -> None: ...

class Reservation(_message.Message):
    __slots__ = ("expires_s",)
    EXPIRES_S_FIELD_NUMBER: _ClassVar[int]
    expires_s: int
    def __init__(self, expires_s: _Optional[int] = ...) -> None: ...

class Limit(_message.Message):
    __slots__ = ("data_bytes",)
    DATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    data_bytes: int
    def __init__(self, data_bytes: _Optional[int] = ...) -> None: ...

class Identify(_message.Message):
    __slots__ = ("observed_address",)
    OBSERVED_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    observed_address: bytes
    def __init__(self, observed_address: _Optional[bytes] = ...) -> None: ...

class DialBackMessage(_message.Message):
    __slots__ = ("type", "dial", "response")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        DIAL: _ClassVar[DialBackMessage.Type]
        DIAL_RESPONSE: _ClassVar[DialBackMessage.Type]
    DIAL: DialBackMessage.Type
    DIAL_RESPONSE: DialBackMessage.Type
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DIAL_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    type: DialBackMessage.Type
    dial: Dial
    response: DialResponse
    def __init__(self, type: _Optional[_Union[DialBackMessage.Type, str]] = ..., dial: _Optional[_Union[Dial, _Mapping]] = ..., response: _Optional[_Union[DialResponse, _Mapping]] = ...) -> None: ...

class Dial(_message.Message):
    __slots__ = ("target",)
    TARGET_FIELD_NUMBER: _ClassVar[int]
    target: Target
    def __init__(self, target: _Optional[_Union[Target, _Mapping]] = ...) -> None: ...

class Target(_message.Message):
    __slots__ = ("id", "addresses")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    addresses: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, id: _Optional[bytes] = ..., addresses: _Optional[_Iterable[bytes]] = ...) -> None: ...

class DialResponse(_message.Message):
    __slots__ = ("status", "address")
    class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OK: _ClassVar[DialResponse.Status]
        DIAL_ERROR: _ClassVar[DialResponse.Status]
        DIAL_REFUSED: _ClassVar[DialResponse.Status]
        BAD_REQUEST: _ClassVar[DialResponse.Status]
        INTERNAL_ERROR: _ClassVar[DialResponse.Status]
    OK: DialResponse.Status
    DIAL_ERROR: DialResponse.Status
    DIAL_REFUSED: DialResponse.Status
    BAD_REQUEST: DialResponse.Status
    INTERNAL_ERROR: DialResponse.Status
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    status: DialResponse.Status
    address: bytes
    def __init__(self, status: _Optional[_Union[DialResponse.Status, str]] = ..., address: _Optional[bytes] = ...) -> None: ...

from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Request(_message.Message):
    __slots__ = ("type", "connect", "stream_open", "stream_handler", "disconnect")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        IDENTIFY: _ClassVar[Request.Type]
        CONNECT: _ClassVar[Request.Type]
        STREAM_OPEN: _ClassVar[Request.Type]
        STREAM_HANDLER: _ClassVar[Request.Type]
        LIST_PEERS: _ClassVar[Request.Type]
        DISCONNECT: _ClassVar[Request.Type]
        PERSISTENT_CONN_UPGRADE: _ClassVar[Request.Type]
    IDENTIFY: Request.Type
    CONNECT: Request.Type
    STREAM_OPEN: Request.Type
    STREAM_HANDLER: Request.Type
    LIST_PEERS: Request.Type
    DISCONNECT: Request.Type
    PERSISTENT_CONN_UPGRADE: Request.Type
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CONNECT_FIELD_NUMBER: _ClassVar[int]
    STREAM_OPEN_FIELD_NUMBER: _ClassVar[int]
    STREAM_HANDLER_FIELD_NUMBER: _ClassVar[int]
    DISCONNECT_FIELD_NUMBER: _ClassVar[int]
    type: Request.Type
    connect: ConnectRequest
    stream_open: StreamOpenRequest
    stream_handler: StreamHandlerRequest
    disconnect: DisconnectRequest
    def __init__(self, type: _Optional[_Union[Request.Type, str]] = ..., connect: _Optional[_Union[ConnectRequest, _Mapping]] = ..., stream_open: _Optional[_Union[StreamOpenRequest, _Mapping]] = ..., stream_handler: _Optional[_Union[StreamHandlerRequest, _Mapping]] = ..., disconnect: _Optional[_Union[DisconnectRequest, _Mapping]] = ...) -> None: ...

class ConnectRequest(_message.Message):
    __slots__ = ("peer", "addresses", "timeout_s")
    PEER_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    peer: bytes
    addresses: _containers.RepeatedScalarFieldContainer[bytes]
    timeout_s: int
    def __init__(self, peer: _Optional[bytes] = ..., addresses: _Optional[_Iterable[bytes]] = ..., timeout_s: _Optional[int] = ...) -> None: ...

class StreamOpenRequest(_message.Message):
    __slots__ = ("peer", "protocols", "timeout_s")
    PEER_FIELD_NUMBER: _ClassVar[int]
    PROTOCOLS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    peer: bytes
    protocols: _containers.RepeatedScalarFieldContainer[str]
    timeout_s: int
    def __init__(self, peer: _Optional[bytes] = ..., protocols: _Optional[_Iterable[str]] = ..., timeout_s: _Optional[int] = ...) -> None: ...

class StreamHandlerRequest(_message.Message):
    __slots__ = ("listener", "protocols", "balanced")
    LISTENER_FIELD_NUMBER: _ClassVar[int]
    PROTOCOLS_FIELD_NUMBER: _ClassVar[int]
    BALANCED_FIELD_NUMBER: _ClassVar[int]
    listener: bytes
    protocols: _containers.RepeatedScalarFieldContainer[str]
    balanced: bool
    def __init__(self, listener: _Optional[bytes] = ..., protocols: _Optional[_Iterable[str]] = ..., balanced: _Optional[bool] = ...) -> None: ...

class DisconnectRequest(_message.Message):
    __slots__ = ("peer",)
    PEER_FIELD_NUMBER: _ClassVar[int]
    peer: bytes
    def __init__(self, peer: _Optional[bytes] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("type", "error", "stream", "identity", "peers")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OK: _ClassVar[Response.Type]
        ERROR: _ClassVar[Response.Type]
    OK: Response.Type
    ERROR: Response.Type
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    type: Response.Type
    error: ErrorResponse
    stream: StreamInfo
    identity: PeerInfo
    peers: _containers.RepeatedCompositeFieldContainer[PeerInfo]
    def __init__(self, type: _Optional[_Union[Response.Type, str]] = ..., error: _Optional[_Union[ErrorResponse, _Mapping]] = ..., stream: _Optional[_Union[StreamInfo, _Mapping]] = ..., identity: _Optional[_Union[PeerInfo, _Mapping]] = ..., peers: _Optional[_Iterable[_Union[PeerInfo, _Mapping]]] = ...) -> None: ...

class ErrorResponse(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: bytes
    def __init__(self, message: _Optional[bytes] = ...) -> None: ...

class StreamInfo(_message.Message):
    __slots__ = ("peer", "address")
    PEER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    peer: bytes
    address: bytes
    def __init__(self, peer: _Optional[bytes] = ..., address: _Optional[bytes] = ...) -> None: ...

class PeerInfo(_message.Message):
    __slots__ = ("id", "addresses")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    addresses: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, id: _Optional[bytes] = ..., addresses: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PrivateKey(_message.Message):
    __slots__ = ("type", "data")
    class KeyType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        RSA: _ClassVar[PrivateKey.KeyType]
        ED25519: _ClassVar[PrivateKey.KeyType]
    RSA: PrivateKey.KeyType
    ED25519: PrivateKey.KeyType
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    type: PrivateKey.KeyType
    data: bytes
    def __init__(self, type: _Optional[_Union[PrivateKey.KeyType, str]] = ..., data: _Optional[bytes] = ...) -> None: ...

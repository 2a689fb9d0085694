"""TODO_ROOM"""
